"""A family's table itself: what it costs to place the names of a large checkpoint."""

from anyformer.families.statemap import Rule, StateMap


class Counted(dict[str, str]):
    """A table that counts how often all of its names are asked for."""

    asked = 0

    def keys(self):
        self.asked += 1
        return super().keys()


def test_names_of_a_checkpoint_are_placed_with_one_look_at_all_known_ones():
    copies = Counted({"lm_head.weight": "embed.weight"})
    table = StateMap(rules=(Rule("embed.weight", "embed.tokens.weight"),), copies=copies, prefix="model.")
    known = [f"layers.{i}.weight" for i in range(500)] + ["model.norm.weight"]
    stored = [*known[:-1], "norm.weight", "lm_head.weight"]
    placed = table.placed(stored, known)
    assert placed == {name: name for name in known[:-1]} | {
        "model.norm.weight": "norm.weight",
        "embed.weight": "lm_head.weight",
    }
    assert copies.asked == 1
    assert table.doubles(stored, known) == [("lm_head.weight", "embed.weight")]
    assert copies.asked == 2
