// The stream of news, which makes the live parts of a page ask for themselves: htmx's extension opens it by this.
//
// A page that is hidden has none. A browser has six connections for a host, and each stream holds one: with a stream in
// each of six tabs, a seventh would wait for ever, and nothing could be done in the others.
"use strict";
htmx.createEventSource = (url) => {
  const events = new EventTarget();
  let source = null;
  const pass = ({ type }) => events.dispatchEvent(new Event(type));
  const open = () => {
    source = new EventSource(url);
    source.onopen = (event) => events.onopen?.(event);
    source.onerror = (event) => {
      if (source.readyState === EventSource.CLOSED) end(); // the extension makes another one
      events.onerror?.(event);
    };
    for (const type of ["change", "tick"]) source.addEventListener(type, pass);
  };
  const turn = () => {
    if (document.hidden) {
      source?.close();
      source = null;
    } else if (!source) {
      open();
      pass({ type: "tick" }); // what was missed meanwhile
    }
  };
  const end = () => {
    document.removeEventListener("visibilitychange", turn);
    source?.close();
  };
  document.addEventListener("visibilitychange", turn);
  if (!document.hidden) open();
  Object.defineProperty(events, "readyState", { get: () => source?.readyState ?? EventSource.CONNECTING });
  return Object.assign(events, { close: end });
};
