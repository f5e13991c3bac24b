// What is shown follows what happens: one stream of changes while the page is visible, and
// no request at all while it is hidden. A stack tells no changes, and each request to it
// costs. There a visible page asks again, less often when nobody has touched it for a while.
import { useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { get, lines } from "./api.js";

const watchers = new Set(); // told of changes
const statuses = new Set(); // told of the state of the stream
let state = "starting";
let stream; // of changes
let slow; // the timer for what no change tells

// In milliseconds. TestAnHourOfLookingCostsLessThanACent reads them.
const often = 20000, seldom = 60000, untouched = 300000;
let polls = false; // in place of a stream
let touched = Date.now();
for (const event of ["pointerdown", "keydown", "wheel"]) addEventListener(event, () => (touched = Date.now()), { passive: true });

/** Makes the page ask again now and then. Call it before the first view. */
export const poll = () => (polls = true);

let signedOut = () => {};
/** Sets what happens when the API does not know the visitor any more. */
export const onSignedOut = (then) => (signedOut = then);

const tell = () => watchers.forEach((w) => w());
const say = (next) => {
  if (state === next) return;
  state = next;
  statuses.forEach((s) => s(next));
};
const pause = (ms, signal) => new Promise((done) => {
  const timer = setTimeout(done, ms);
  signal.addEventListener("abort", () => (clearTimeout(timer), done()), { once: true });
});

async function follow(signal) {
  for (let wait = 1000; !signal.aborted;) {
    const lost = state === "lost";
    try {
      for await (const { servers } of lines("changes", signal)) {
        say("live");
        wait = 1000;
        if (servers.length || lost) tell();
      }
      wait = 0; // it has ended in good order
    } catch (error) {
      if (signal.aborted || error.status === 401) return;
      say("lost");
      wait = Math.min(wait * 2 || 1000, 30000);
    }
    await pause(wait, signal);
  }
}

async function again(signal) {
  for (let last = Date.now(); ; ) {
    const wait = Date.now() - touched < untouched ? often : seldom;
    say(wait === often ? "often" : "seldom");
    await pause(often, signal);
    if (signal.aborted) return;
    if (Date.now() - last < wait - 1000) continue;
    last = Date.now();
    tell();
  }
}

function begin() {
  if (stream || document.hidden || !watchers.size) return;
  stream = new AbortController();
  if (polls) return void again(stream.signal);
  follow(stream.signal);
  slow = setInterval(tell, 60000); // a session without a call, a key, the passing of a day
}

function end() {
  stream?.abort();
  clearInterval(slow);
  stream = undefined;
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    end();
    say("paused");
  } else {
    begin();
    tell();
  }
});

/** Returns "live", "often", "seldom", "lost", "paused" or "starting". */
export function useLive() {
  const [now, set] = useState(state);
  useEffect(() => (statuses.add(set), () => statuses.delete(set)), []);
  return now;
}

/** Returns the answers of paths of the API, and renews them whenever something changes. */
export function useData(...paths) {
  const [shown, show] = useState({});
  const again = useRef(() => {});
  const wanted = paths.join(" ");
  useEffect(() => {
    const gone = new AbortController();
    let busy = false, dirty = false;
    const load = async () => {
      if (document.hidden) return;
      if (busy) return (dirty = true);
      busy = true;
      do {
        dirty = false;
        try {
          const data = await Promise.all(paths.map((p) => p && get(p, gone.signal)));
          if (!gone.signal.aborted) show({ wanted, data });
        } catch (error) {
          if (gone.signal.aborted) return;
          if (error.status === 401) return void (end(), signedOut());
          else if (polls && !error.status) say("lost");
          show((before) => ({ ...before, error }));
        }
      } while (dirty);
      busy = false;
    };
    again.current = load;
    watchers.add(load);
    begin();
    load();
    return () => {
      gone.abort();
      watchers.delete(load);
      if (!watchers.size) setTimeout(() => watchers.size || end(), 1000); // the next view may want it too
    };
  }, [wanted]);
  const fresh = shown.wanted === wanted;
  return { data: fresh ? shown.data : undefined, error: shown.error, again: () => again.current() };
}

/** Renders again every few seconds, for times that are said as "3 min ago". */
export function useClock() {
  const [, tick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => document.hidden || tick((n) => n + 1), 5000);
    return () => clearInterval(timer);
  }, []);
}
