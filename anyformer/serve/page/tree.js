/* Ways that a text took: nodes that go on from each other. At every fork one child is the one that was walked last. */

const MOST_BRANCHES = 64;

export class Tree {
  constructor() {
    this.top = { parent: null, children: [], last: null };
    this.leaf = this.top;
    this.clock = 0;
  }

  /* Put a node below another, or where `same` finds it there, take that one; and go there. */
  walk(parent, node, same = () => false) {
    let child = parent.children.find(same);
    if (!child) {
      child = Object.assign(node, { parent, children: [], last: null });
      const forks = parent.children.length > 0;
      parent.children.push(child);
      if (forks) this.prune(child);
    }
    parent.last = child;
    child.seen = ++this.clock;
    return child;
  }

  /* The nodes from the first to this one. */
  path(node = this.leaf) {
    const found = [];
    for (let each = node; each.parent; each = each.parent) found.push(each);
    return found.reverse();
  }

  /* Go to where this node was last continued to. */
  visit(node) {
    for (let each = node; each.parent; each = each.parent) each.parent.last = each;
    let end = node;
    while (end.children.length) end = end.last || end.children[end.children.length - 1];
    end.seen = ++this.clock;
    this.leaf = end;
    return end;
  }

  leaves() {
    const found = [], waiting = [this.top];
    while (waiting.length) {
      const node = waiting.pop();
      if (!node.children.length && node.parent) found.push(node);
      for (let i = node.children.length - 1; i >= 0; i--) waiting.push(node.children[i]);
    }
    return found;
  }

  /* Where a branch left the others: its first node that has siblings. */
  start(leaf) {
    let node = leaf;
    while (node.parent && node.parent.children.length === 1) node = node.parent;
    return node.parent ? node : null;
  }

  forks(leaf) {
    return this.path(leaf).filter((node) => node.parent.children.length > 1).length;
  }

  /* The branch beside: of the fork at or before `node`, or else of the first one after it. */
  sibling(node, step) {
    const path = this.path(), forks = path.filter((each) => each.parent.children.length > 1);
    if (!forks.length) return null;
    const place = path.indexOf(node);
    const fork = forks.filter((each) => path.indexOf(each) <= place).pop() || forks[0];
    const beside = fork.parent.children, wanted = beside[beside.indexOf(fork) + step];
    return wanted || null;
  }

  /* Forget the branch that was left the longest ago, when there are too many. */
  prune(kept) {
    const leaves = this.leaves();
    if (leaves.length <= MOST_BRANCHES) return;
    const oldest = leaves.filter((leaf) => leaf !== kept && leaf !== this.leaf).sort((a, b) => (a.seen || 0) - (b.seen || 0))[0];
    const start = this.start(oldest);
    const { parent } = start;
    parent.children.splice(parent.children.indexOf(start), 1);
    if (parent.last === start) parent.last = parent.children[parent.children.length - 1];
  }
}
