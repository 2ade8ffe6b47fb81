/* Small things that all screens say in the same way. */

export const count = (number) => Number(number).toLocaleString("en");

export function bytes(number) {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let place = 0, left = number;
  for (; left >= 1024 && place < units.length - 1; place++) left /= 1024;
  return `${place && left < 100 ? left.toFixed(1) : Math.round(left)} ${units[place]}`;
}

/* What a token says, which may be given as bytes. */
export function pieceOf(piece) {
  return Array.isArray(piece) ? `bytes:${piece.map((each) => `\\x${each.toString(16).padStart(2, "0")}`).join("")}` : piece;
}

export const typing = (event) => Boolean(event.target.closest && event.target.closest("textarea, input, select"));

/* Run after a pause, and let the run before go. What it can't do is said by whoever asks for more. */
export function debounced(wait, run) {
  let timer = 0, stop = new AbortController();
  return () => {
    clearTimeout(timer);
    stop.abort();
    stop = new AbortController();
    const { signal } = stop;
    timer = setTimeout(() => run(signal).catch(() => undefined), wait);
  };
}
