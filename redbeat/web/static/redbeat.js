// What the pages do in the browser besides htmx. Every page works without it; nothing here decides anything.
//
// HTML asks for it by attributes:
//   <time datetime data-relative>        is kept relative; exact on hover, and on all by the key t
//   form[data-confirm="Sentence."]       is asked first, in a dialog; what is sent then has confirmed=yes.
//                                        data-confirm-button names the button, data-confirm-more adds a line.
//                                        A submit button may have the same; hx-confirm uses that dialog, too
//   form[data-autosubmit]                is sent when a filter is chosen
//   [data-select]                        counts [data-select-one] boxes in [data-select-count]; [data-select-all]
//                                        ticks them; [data-select-needed] buttons wait for one
//   [data-row="id"]                      of several with the same id the last one stays
//   button[data-copy="id"]               copies that element's text
//   [data-search]                        is where the key / goes
//   a[data-shortcut="g e"]               is followed by these keys
//   [data-announce="Sentence."]          in what htmx has swapped in: is told to screen readers
// The server may send the event redbeat-toast (header HX-Trigger): {"text": "Sentence.", "tone": "good"}.
"use strict";
{
  const root = document.documentElement;
  const base = root.dataset.root || "";
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];

  const stored = {
    get(name) {
      try {
        return localStorage.getItem(`redbeat-${name}`);
      } catch {
        return null; // storage may be forbidden: nothing is remembered
      }
    },
    set(name, value) {
      try {
        localStorage.setItem(`redbeat-${name}`, value);
      } catch {
        // likewise
      }
    },
  };

  // Theme

  const showTheme = () => {
    const theme = root.dataset.theme || "auto";
    for (const button of all("[data-set-theme]")) {
      button.setAttribute("aria-pressed", String(button.dataset.setTheme === theme));
    }
  };
  const setTheme = (theme) => {
    if (theme === "auto") delete root.dataset.theme;
    else root.dataset.theme = theme;
    stored.set("theme", theme);
    showTheme();
  };

  // Times. The server's clock counts: the viewer's may be wrong. The page was made when its response began.

  const begun = performance.timeOrigin + (performance.getEntriesByType("navigation")[0]?.responseStart ?? 0);
  const skewMs = (Date.parse(root.dataset.now) || begun) - begun;
  const units = [[365 * 86400, "y"], [86400, "d"], [3600, "h"], [60, "min"]];
  const inWords = (seconds) => {
    for (const [unit, name] of units) {
      if (seconds >= 2 * unit || (unit === 60 && seconds >= 90)) return `${Math.round(seconds / unit)} ${name}`;
    }
    return `${Math.round(seconds)} s`;
  };
  const relative = (moment, now) => {
    const seconds = Math.round((moment - now) / 1000);
    if (seconds === 0) return "now";
    return seconds > 0 ? `in ${inWords(seconds)}` : `${inWords(-seconds)} ago`;
  };
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
  const shape = new Intl.DateTimeFormat("en-GB", {
    year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
    hourCycle: "h23", timeZone: zone, timeZoneName: "longOffset",
  });
  const exact = (moment) => {
    const part = Object.fromEntries(shape.formatToParts(moment).map(({ type, value }) => [type, value]));
    const offset = part.timeZoneName.replace("GMT", "") || "+00:00";
    return `${part.year}-${part.month}-${part.day} ${part.hour}:${part.minute}:${part.second} ${offset}`;
  };
  const known = new WeakMap(); // what is exact, as it takes long to make
  const exactOf = (element, moment) => {
    if (known.get(element)?.moment !== moment) known.set(element, { moment, text: exact(moment) });
    return known.get(element).text;
  };
  let isExact = stored.get("times") === "exact";
  const showTimes = (within = document) => {
    const now = Date.now() + skewMs;
    for (const element of all("time[data-relative]", within)) {
      const moment = Date.parse(element.dateTime);
      if (Number.isNaN(moment)) continue;
      const [shown, other] = [relative(moment, now), exactOf(element, moment)];
      const [text, title] = isExact ? [other, shown] : [shown, `${other} ${zone}`];
      if (element.textContent !== text) element.textContent = text;
      if (element.title !== title) element.title = title;
    }
  };
  const switchTimes = () => {
    isExact = !isExact;
    stored.set("times", isExact ? "exact" : "relative");
    showTimes();
    announce(isExact ? "Times are exact." : "Times are relative.");
  };
  const tellZone = () => {
    const secure = location.protocol === "https:" ? "; Secure" : "";
    const rest = `; Path=${base || "/"}; Max-Age=31536000; SameSite=Lax${secure}`;
    document.cookie = `redbeat-zone=${encodeURIComponent(zone)}${rest}`;
    // the first page was made before the server knew; one that is loaded again, and browsers without cookies, stay
    const { guessedZone = zone } = root.dataset;
    const isFirst = performance.getEntriesByType("navigation")[0]?.type === "navigate";
    if (guessedZone !== zone && isFirst && document.cookie.includes("redbeat-zone=")) location.reload();
  };

  // What is said to everybody, and to screen readers

  const announce = (text) => {
    const region = document.getElementById("announcer");
    if (region) region.textContent = region.textContent === text ? `${text}\u00a0` : text;
  };
  const shapes = { good: "check", warn: "warning", danger: "warning", info: "info", neutral: "info" };
  const textOf = (element) => element.querySelector("span").textContent;
  const toast = ({ text, tone = "info" }) => {
    const template = document.getElementById("toast-template");
    if (!template || !text) return null;
    for (const other of all(".toast")) if (textOf(other) === text) other.remove();
    const kind = Object.hasOwn(shapes, tone) ? tone : "info";
    const element = template.content.firstElementChild.cloneNode(true);
    element.classList.add(`tone-${kind}`);
    element.querySelector("use").setAttribute("href", `#icon-${shapes[kind]}`);
    element.querySelector("span").textContent = text;
    document.querySelector(".toasts").append(element);
    // what went wrong stays until it is closed
    if (kind !== "danger") setTimeout(() => element.remove(), 8000);
    return element;
  };

  // Questions

  const ask = (told, button, goOn) => {
    const dialog = document.getElementById("confirm-dialog");
    dialog.querySelector("[data-slot=question]").textContent = told.confirm;
    dialog.querySelector("[data-slot=more]").textContent = told.confirmMore || "";
    const yes = dialog.querySelector("[value=yes]");
    yes.textContent = told.confirmButton || button?.textContent.trim() || "Go on";
    yes.classList.toggle("is-danger", Boolean(button?.classList.contains("is-danger")));
    dialog.returnValue = "";
    dialog.addEventListener("close", () => {
      if (dialog.returnValue === "yes") goOn();
    }, { once: true });
    dialog.showModal();
  };
  const confirmed = new WeakSet();
  // before htmx sees it
  document.addEventListener("submit", (event) => {
    const { target: form, submitter } = event;
    const told = { ...form.dataset, ...submitter?.dataset };
    if (!told.confirm || confirmed.has(form)) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    ask(told, submitter, () => {
      const mark = Object.assign(document.createElement("input"), { type: "hidden", name: "confirmed", value: "yes" });
      form.append(mark);
      confirmed.add(form);
      form.requestSubmit(submitter);
      confirmed.delete(form);
      mark.remove();
    });
  }, true);
  // a second click sends no form that is on its way
  const sent = new WeakSet();
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (event.defaultPrevented || form.method !== "post") return;
    if (sent.has(form)) {
      event.preventDefault();
      return;
    }
    sent.add(form);
    setTimeout(() => sent.delete(form), 3000);
  });
  document.addEventListener("htmx:confirm", (event) => {
    const { question, elt, issueRequest } = event.detail;
    if (!question) return;
    event.preventDefault();
    ask({ ...elt.dataset, confirm: question }, elt, () => issueRequest(true));
  });

  // Choosing rows

  const showSelection = (form) => {
    const boxes = all("[data-select-one]", form);
    const chosen = boxes.filter((box) => box.checked).length;
    for (const box of all("[data-select-all]", form)) {
      box.checked = chosen > 0 && chosen === boxes.length;
      box.indeterminate = chosen > 0 && chosen < boxes.length;
    }
    for (const place of all("[data-select-count]", form)) place.textContent = `${chosen} selected`;
    for (const button of all("[data-select-needed]", form)) button.disabled = chosen === 0;
    for (const bar of all(".selection", form)) bar.classList.toggle("is-on", chosen > 0);
  };
  let lastValue = null; // not the box itself, which may have been swapped meanwhile
  document.addEventListener("click", ({ target, shiftKey }) => {
    if (!(target instanceof Element) || !target.matches("[data-select-one]")) return;
    const boxes = all("[data-select-one]", target.closest("[data-select]") ?? document);
    const before = boxes.findIndex((box) => box.value === lastValue);
    if (shiftKey && before >= 0) {
      const [first, last] = [before, boxes.indexOf(target)].sort((one, other) => one - other);
      for (const box of boxes.slice(first, last + 1)) box.checked = target.checked;
    }
    lastValue = target.value;
  });
  document.addEventListener("change", ({ target }) => {
    const form = target.closest("[data-select]");
    if (form && target.matches("[data-select-all]")) {
      for (const box of all("[data-select-one]", form)) box.checked = target.checked;
    }
    if (form) showSelection(form);
    const filters = target.closest("form[data-autosubmit]");
    if (filters && target.matches("select, [type=checkbox], [type=radio], [type=date]")) {
      stored.set("chosen", target.id); // has the focus in the page that comes
      filters.requestSubmit();
    }
  });

  // Buttons

  const copy = async (button) => {
    const source = document.getElementById(button.dataset.copy);
    try {
      await navigator.clipboard.writeText(source.value ?? source.textContent);
      announce("Copied.");
      toast({ text: "Copied.", tone: "good" });
    } catch {
      // without HTTPS there is no clipboard: the text is marked, for Ctrl-C
      getSelection().selectAllChildren(source);
      toast({ text: "It is marked: copy it with Ctrl-C.", tone: "info" });
    }
  };
  const showHelp = () => {
    const dialog = document.getElementById("help-dialog");
    if (dialog && !dialog.open) dialog.showModal();
  };
  document.addEventListener("click", ({ target }) => {
    const button = target instanceof Element ? target.closest("button") : null;
    if (!button) return;
    if (button.dataset.setTheme) setTheme(button.dataset.setTheme);
    else if (button.dataset.copy) copy(button);
    else if ("help" in button.dataset) showHelp();
    else if ("times" in button.dataset) switchTimes();
    else if ("close" in button.dataset) button.closest(".toast")?.remove();
  });
  // a menu closes where one clicks beside it, or leaves it
  const closeMenus = (target) => {
    for (const menu of all("details.nav-menu[open]")) if (!menu.contains(target)) menu.open = false;
  };
  document.addEventListener("pointerdown", ({ target }) => closeMenus(target));
  document.addEventListener("focusin", ({ target }) => closeMenus(target));

  // Keys

  let firstKey = "";
  let firstAt = 0;
  const usesKeys = () => stored.get("keys") !== "off";
  const follow = (keys) => {
    const link = all("[data-shortcut]").find((one) => one.dataset.shortcut === keys);
    link?.click();
    return Boolean(link);
  };
  document.addEventListener("keydown", (event) => {
    const { key, target } = event;
    if (key === "Escape") {
      const menu = target.closest?.("details.nav-menu[open]");
      if (menu) {
        menu.open = false;
        menu.querySelector("summary").focus();
      }
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || !usesKeys()) return;
    if (target.closest?.("input, select, textarea, [contenteditable], dialog")) return;
    const both = firstKey && performance.now() - firstAt < 1500 ? `${firstKey} ${key}` : "";
    firstKey = "";
    if (both && follow(both)) return event.preventDefault();
    if (key === "/") document.querySelector("[data-search]")?.focus();
    else if (key === "?") showHelp();
    else if (key === "t") switchTimes();
    else if (key === "g") [firstKey, firstAt] = [key, performance.now()];
    else return;
    event.preventDefault();
  });

  // What htmx swaps in

  // What somebody is about to do isn't taken away: while a dialog is open nothing is swapped, nor a part with a
  // form whose answer is awaited, or with what is pressed: let go over another button, it would do nothing. It is
  // asked for once more then.
  const putOff = new Map();
  let pressed = null;
  const isHeld = (target, asker) => Boolean(document.querySelector("dialog[open]"))
    || (target.contains(pressed) && !asker.matches("form"))
    || all("form.htmx-request", target).some((form) => form !== asker);
  const askAgain = () => {
    const asked = [...putOff];
    putOff.clear();
    for (const [target, { verb, path, elt }] of asked) htmx.ajax(verb, path, { source: elt, target });
  };
  document.addEventListener("close", askAgain, true);
  const letGo = () => setTimeout(() => { // the click comes after it
    pressed = null;
    if (putOff.size) askAgain();
  });
  document.addEventListener("pointerdown", ({ target, button }) => { pressed = button === 0 ? target : null; }, true);
  for (const type of ["pointerup", "pointercancel", "contextmenu"]) document.addEventListener(type, letGo, true);

  // What somebody has done with a part stays when it is swapped: the focus, ticks, open details, and how far its
  // regions are scrolled. An element is found again by its key; of several that have it, by its number.
  const keyed = "a[href], button, input, select, textarea, summary, details, [tabindex]";
  const keyOf = (element) => {
    if (element.id) return element.id;
    const told = element.matches("a, input, select, textarea")
      ? ["href", "name", "value"].map((name) => element.getAttribute(name))
      : [element.getAttribute("aria-label") ?? (element.querySelector("summary") ?? element).textContent];
    const fields = element.matches("button") ? all("[type=hidden]:not([name=once])", element.form ?? element) : [];
    return JSON.stringify([element.tagName, ...told, ...fields.map(({ value }) => value)]);
  };
  const finderOf = (element) => {
    const key = keyOf(element);
    const same = () => all(keyed).filter((one) => keyOf(one) === key);
    const number = same().indexOf(element);
    return () => same().slice(0, number + 1).at(-1);
  };
  const keep = (target) => {
    const active = target.contains(document.activeElement) ? finderOf(document.activeElement) : null;
    const ticked = new Set(all("[data-select-one]:checked", target).map((box) => box.value));
    const open = all("details[open]", target).map(finderOf);
    const scrolled = all("[tabindex]", target)
      .filter(({ scrollLeft, scrollTop }) => scrollLeft || scrollTop)
      .map((region) => [finderOf(region), { left: region.scrollLeft, top: region.scrollTop }]);
    return () => {
      for (const box of all("[data-select-one]")) if (ticked.has(box.value)) box.checked = true;
      for (const find of open) find()?.setAttribute("open", "");
      for (const [find, place] of scrolled) find()?.scrollTo(place);
      if (active) focusOn(active() ?? target, { preventScroll: true });
    };
  };
  const focusOn = (place, options) => {
    if (place.tabIndex < 0) place.tabIndex = -1;
    place.focus(options);
  };
  let restore = null;
  document.addEventListener("htmx:beforeSwap", (event) => {
    const { shouldSwap, target, requestConfig } = event.detail;
    if (!shouldSwap) return;
    if (!isHeld(target, requestConfig.elt)) {
      restore = keep(target);
      return;
    }
    event.preventDefault();
    if (!requestConfig.elt.matches("form")) putOff.set(target, requestConfig);
  });
  document.addEventListener("htmx:afterSwap", () => {
    restore?.();
    restore = null;
    // what a search finds again, as it has run meanwhile, stands where it was found last
    const rows = new Map();
    for (const row of all("[data-row]")) {
      rows.get(row.dataset.row)?.remove();
      rows.set(row.dataset.row, row);
    }
  });
  document.addEventListener("htmx:afterSettle", ({ target }) => {
    showTimes(target.parentNode ?? document);
    for (const form of all("[data-select]")) showSelection(form);
    for (const problem of all(".problem")) {
      const field = document.getElementById(problem.id.replace("-problem", ""));
      if (problem.childElementCount) field?.setAttribute("aria-invalid", "true");
      else field?.removeAttribute("aria-invalid");
    }
    const said = target.dataset.announce ?? target.querySelector("[data-announce]")?.dataset.announce;
    if (said) announce(said);
  });

  // What fails. Of what the page asks for by itself one notice says so, until it has an answer again.

  let outage = null;
  const tellFailure = (text, { triggeringEvent }, more = "") => {
    if (triggeringEvent?.isTrusted) {
      toast({ text: text + more, tone: "danger" });
      return;
    }
    const told = `${text} What this page shows may be old.`;
    if (outage && textOf(outage) === told) return;
    outage?.remove();
    outage = toast({ text: told, tone: "danger" });
  };
  document.addEventListener("htmx:afterRequest", ({ detail }) => {
    if (detail.requestConfig.elt.matches("form")) askAgain();
    if (!detail.successful) return;
    outage?.remove();
    outage = null;
  });
  document.addEventListener("htmx:responseError", ({ detail: { xhr, requestConfig } }) => {
    const text = xhr.getResponseHeader("X-RedBeat-Error");
    tellFailure(text ? decodeURIComponent(text) : `The dashboard has refused that (${xhr.status}).`, requestConfig);
  });
  document.addEventListener("htmx:sendError", ({ detail: { requestConfig } }) => {
    tellFailure("The dashboard doesn't answer.", requestConfig, " Nothing was changed, as far as is known.");
  });
  document.addEventListener("redbeat-toast", ({ detail }) => toast(detail));

  // Start

  const chosen = stored.get("chosen");
  if (chosen) {
    stored.set("chosen", "");
    document.getElementById(chosen)?.focus();
  }
  tellZone();
  showTheme();
  showTimes();
  // also when one comes back to the page: the browser has kept the ticks
  addEventListener("pageshow", () => all("[data-select]").forEach((form) => showSelection(form)));
  const keys = document.getElementById("uses-keys");
  if (keys) {
    keys.checked = usesKeys();
    keys.addEventListener("change", () => stored.set("keys", keys.checked ? "on" : "off"));
  }
  setInterval(() => {
    if (!document.hidden) showTimes();
  }, 1000);
  document.addEventListener("visibilitychange", () => showTimes());
  addEventListener("storage", ({ key, newValue }) => {
    if (key === "redbeat-theme") setTheme(newValue || "auto");
  });
}
