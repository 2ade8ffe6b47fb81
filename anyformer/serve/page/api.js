/* Talking to a server: answers, streams of events, keys, and refusals in words. */

export class Refusal extends Error {
  constructor(message, { status = 0, code = null, retry = null } = {}) {
    super(message);
    Object.assign(this, { status, code, retry });
  }
}

export const here = location.origin;
/* Milliseconds that may pass without a rest. */
const FRAME = 8;
let unlock = async () => false;

/* `asks(origin)` lets the user type a key for a server that wants one; it resolves to whether there is one now. */
export function onLocked(asks) {
  unlock = asks;
}

const nameOf = (origin) => `anyformer key ${origin}`;
export const keyFor = (origin) => sessionStorage.getItem(nameOf(origin));
export const keepKey = (origin, key) => sessionStorage.setItem(nameOf(origin), key);
export const forgetKey = (origin) => sessionStorage.removeItem(nameOf(origin));

/* A server's address as the user may write it. */
export function originOf(text) {
  const given = text.trim();
  if (!given) return here;
  try {
    const url = new URL(/^https?:\/\//.test(given) ? given : `http://${given}`);
    return url.origin;
  } catch {
    throw new Refusal(`${given} is not an address; write for example http://127.0.0.1:8001`);
  }
}

async function send(path, { body, signal, origin = here, accept }, again = true) {
  const headers = { accept };
  const key = keyFor(origin);
  if (key) headers.authorization = `Bearer ${key}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  let answer;
  try {
    answer = await fetch(origin + path, {
      method: body === undefined ? "GET" : "POST", headers, signal, credentials: "omit", cache: "no-store",
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    const why = origin === here ? "" : ` Or it does not allow this page: start it with --cors-origins ${here}. The server of this page must let it ask there, too.`;
    throw new Refusal(`The server at ${new URL(origin).host} can't be reached. Nothing is lost: try again when it answers.${why}`);
  }
  if (answer.status === 401 && again && (await unlock(origin))) return send(path, { body, signal, origin, accept }, false);
  if (!answer.ok) throw await refusal(answer);
  return answer;
}

async function refusal(answer) {
  const text = await answer.text().catch(() => "");
  let told = {};
  try {
    told = JSON.parse(text).error || {};
  } catch {
    told = { message: text.slice(0, 300) };
  }
  const message = told.message || `The server answered ${answer.status}.`;
  const retry = /^\d+$/.test(answer.headers.get("retry-after") || "") ? +answer.headers.get("retry-after") : null;
  return new Refusal(spoken(answer.status, message, retry), { status: answer.status, code: told.code, retry });
}

function spoken(status, message, retry) {
  const when = retry === null ? "" : ` Try again in ${retry} ${retry === 1 ? "second" : "seconds"}.`;
  if (status === 401) return `This server needs an API key. ${message}`;
  if (status === 429) return `The server has as many requests as it can take. ${message}${when}`;
  if (status === 503) return `The server is not ready. ${message}${when}`;
  return message;
}

export async function ask(path, body, options = {}) {
  const answer = await send(path, { ...options, body, accept: "application/json" });
  return answer.json();
}

export async function askText(path, options = {}) {
  const answer = await send(path, { ...options, accept: "text/plain" });
  return answer.text();
}

/* The events of a stream as they come. One that ends without its last event is a refusal, after what came. */
export async function* events(path, body, options = {}) {
  const answer = await send(path, { ...options, body, accept: "text/event-stream" });
  const reader = answer.body.getReader(), decoder = new TextDecoder();
  const broken = "The connection broke before the answer was complete. What came is kept.";
  let pieces = [], data = [], rested = performance.now();
  try {
    for (;;) {
      const { done, value } = await reader.read().catch((error) => {
        throw error.name === "AbortError" ? error : new Refusal(broken);
      });
      if (done) throw new Refusal(broken);
      const lines = decoder.decode(value, { stream: true }).split("\n");
      for (const [i, piece] of lines.entries()) {
        pieces.push(piece);
        if (i === lines.length - 1) break;
        const line = pieces.join("").replace(/\r$/, "");
        pieces = [];
        if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
        if (line !== "" || !data.length) continue;
        const told = data.join("\n");
        data = [];
        if (told === "[DONE]") return;
        const event = JSON.parse(told);
        if (event.error) throw new Refusal(event.error.message || "The server stopped with an error.", { code: event.error.code });
        yield event;
        // Many events may come at once; the page must be able to draw and to listen between them.
        if (performance.now() - rested > FRAME) {
          await new Promise((go) => setTimeout(go));
          rested = performance.now();
        }
      }
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
}

/* Samples of a Prometheus text, summed over their labels. */
export function metricsOf(text) {
  const found = new Map();
  for (const [, name, value] of text.matchAll(/^([a-zA-Z_:][\w:]*)(?:\{[^\n]*\})? ([^\s]+)/gm)) {
    found.set(name, (found.get(name) || 0) + Number(value));
  }
  return found;
}
