/* What settings make of a distribution of which the likeliest tokens and the sum of the others are known. */

const LN2 = Math.log(2);
export const bitsOf = (logprob) => Math.max(0, -logprob / LN2);

/* Bits of a distribution's uncertainty; the tokens that are not known count as one. */
export function entropyOf(top) {
  let known = 0, bits = 0;
  for (const { logprob } of top) {
    const share = Math.exp(logprob);
    known += share;
    if (share > 0) bits -= share * logprob / LN2;
  }
  const rest = 1 - known;
  return rest > 1e-6 ? bits - rest * Math.log2(rest) : bits;
}

/* Shares of the tokens of `top` after temperature, top-k, top-p and min-p, in this order as the sampler does it, and that of
   the rest of the vocabulary, which is taken to be evenly spread. A share of 0 means that the token can't be drawn. */
export function sampled(top, values, vocabulary) {
  const { temperature, top_k, top_p, min_p } = values;
  const others = Math.max(0, vocabulary - top.length);
  if (!top.length) return { shares: [], rest: 0 };
  if (temperature === 0) return { shares: top.map((_, i) => (i ? 0 : 1)), rest: 0 };
  const raw = top.map(({ logprob }) => Math.exp(logprob));
  const left = Math.max(0, 1 - raw.reduce((a, b) => a + b, 0)), high = top[0].logprob;
  const each = others ? Math.min(left / others, raw[raw.length - 1]) : 0;
  let shares = top.map(({ logprob }) => Math.exp((logprob - high) / temperature));
  let rest = each > 1e-12 ? others * Math.exp((Math.log(each) - high) / temperature) : 0;
  let alone = others ? rest / others : 0;
  const scale = () => {
    const sum = shares.reduce((a, b) => a + b, rest);
    shares = shares.map((share) => share / sum);
    rest /= sum;
    alone /= sum;
  };
  if (top_k > 0) {
    shares = shares.map((share, i) => (i < top_k ? share : 0));
    const kept = Math.max(0, top_k - top.length);
    rest = Math.min(rest, kept * alone);
  }
  scale();
  if (top_p < 1) {
    let before = 0;
    shares = shares.map((share) => {
      const kept = before < top_p ? share : 0;
      before += share;
      return kept;
    });
    rest = Math.min(rest, Math.max(0, top_p - before));
    scale();
  }
  if (min_p > 0) {
    const least = min_p * Math.max(...shares);
    shares = shares.map((share) => (share >= least ? share : 0));
    if (alone < least) rest = 0;
    scale();
  }
  return { shares, rest };
}
