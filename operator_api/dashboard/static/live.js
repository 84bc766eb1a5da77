// What pages that keep themselves up to date have in common: the stream of events, and parts that are
// replaced by what the server renders anew. The state of the stream is told in #live-state.

const RECONNECT_MS = 5000;
const TEXT_OF = {
  live: "Live", reconnecting: "Reconnecting…", outdated: "Not up to date; trying again…",
  ended: "The session has ended.",
};

let streams = false; // whether the stream is open
let catchUp = null; // called when the page may have missed something
let retrying = null;

/** The address of a path of this service, under its root, with these query parameters (null: omitted). */
export function url(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined);
  const search = new URLSearchParams(given).toString();
  return document.documentElement.dataset.root + path + (search ? `?${search}` : "");
}

/** The address of a client's page. */
export function clientUrl(clientId) {
  return url(`/dashboard/clients/${encodeURIComponent(clientId)}`);
}

/** Fetch from this service; null on failure. What went wrong is shown in the header, and a page that follows catches up. */
export async function ask(path, options = {}) {
  if (hasEnded()) return null;
  try {
    const answer = await fetch(path, options);
    if (answer.status === 401) show("ended");
    else if (!answer.ok) showOutdated();
    else if (streams) show("live");
    return answer.ok ? answer : null;
  } catch {
    showOutdated();
    return null;
  }
}

/** Without a stream it is shown that there is none; with one, that answers fail, which are asked for again. */
function showOutdated() {
  if (!streams) return;
  show("outdated");
  clearTimeout(retrying);
  retrying = setTimeout(catchUp, RECONNECT_MS);
}

/** Show that what the page draws is "loading", that this was a "failure", or neither (""). */
export function showLoading(state) {
  for (const id of ["loading", "failure"]) document.getElementById(id).hidden = id !== state;
}

/**
 * Follow what happens: all of it, or what concerns a task or a round.
 *
 * onEvent is given each event, an object as GET /events has it; onOpen is called whenever the stream begins or
 * goes on, so that nothing is missed that happened before.
 */
export function follow({ taskId = null, roundId = null, onEvent, onOpen = () => {} }) {
  let after = null;
  catchUp = onOpen;

  function connect() {
    const source = new EventSource(url("/dashboard/events", { task_id: taskId, round_id: roundId, after }));
    source.onopen = () => {
      streams = true;
      show("live");
      onOpen();
    };
    source.onmessage = (message) => {
      after = message.lastEventId;
      onEvent(JSON.parse(message.data));
    };
    source.onerror = () => {
      streams = false;
      show("reconnecting");
      // Otherwise the browser connects again by itself, after where it was.
      if (source.readyState === EventSource.CLOSED) setTimeout(connectIfAllowed, RECONNECT_MS);
    };
  }

  // A browser gives up when the answer is no stream, and does not tell why: the session may have ended, or a
  // proxy have answered for a service that is being restarted.
  async function connectIfAllowed() {
    const asking = new AbortController();
    const answer = await ask(url("/dashboard/events"), { signal: asking.signal });
    asking.abort();
    if (answer) connect();
    else if (!hasEnded()) setTimeout(connectIfAllowed, RECONNECT_MS);
  }

  connect();
}

/** A function that calls another at once, and then at most once in so many milliseconds, never twice at a time. */
export function atMostEvery(milliseconds, act) {
  let busy = false;
  let again = false;
  return async function call() {
    again = busy;
    if (busy) return;
    busy = true;
    const pause = new Promise((done) => setTimeout(done, milliseconds));
    try {
      await act();
    } catch {
      again = true; // an answer broke off
    }
    await pause;
    busy = false;
    if (again) call();
  };
}

/** Replace every element with data-part by the one of the same id in the HTML that a path answers with. */
export async function refreshParts(path) {
  const answer = await ask(path);
  if (!answer) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const part of fresh.querySelectorAll("[data-part]")) {
    const old = document.getElementById(part.id);
    if (old) refresh(old, part);
  }
}

/** What somebody is using, by focus or by having opened it, stays; everything around it is renewed. */
function refresh(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  if (!isInUse(old)) {
    old.replaceWith(fresh);
    return;
  }
  const pairs = [...fresh.children].map((child, place) => [
    child.id ? old.querySelector(`:scope > #${CSS.escape(child.id)}`) : old.children[place],
    child,
  ]);
  for (const [before, now] of pairs) {
    if (before && before.tagName === now.tagName && before.id === now.id) refresh(before, now);
  }
}

function isInUse(element) {
  return element.contains(document.activeElement) || element.querySelector("details[open]") !== null ||
    element.matches("details[open]");
}

function hasEnded() {
  return document.getElementById("live-state").dataset.state === "ended";
}

function show(state) {
  const region = document.getElementById("live-state");
  if (region.dataset.state === state || hasEnded()) return;
  region.dataset.state = state;
  region.textContent = TEXT_OF[state];
  if (state === "ended") {
    const link = document.createElement("a");
    link.href = url("/dashboard/login", { next: location.pathname + location.search });
    link.textContent = "Log in";
    region.append(" ", link);
  }
}
