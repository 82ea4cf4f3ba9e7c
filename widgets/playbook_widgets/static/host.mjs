// The page runtime of the static book: gives each widget's module the model it would have in a kernel.
//
// A widget is an element `.pb-widget` with its spec in a script of type application/json: the module to draw with
// (a file beside this one) and the first state. Widgets are drawn when they come near the view, one failing widget
// leaves the others alone, and nothing is asked of any other host.

const base = new URL(".", import.meta.url);

/** What anywidget calls a model: state, and callbacks on "change:<key>". */
export class Model {
  constructor(state) {
    this.state = structuredClone(state);
    this.listeners = new Map();
  }
  get(key) {
    return this.state[key];
  }
  set(key, value) {
    if (Object.is(this.state[key], value)) return;
    this.state[key] = value;
    this.emit(`change:${key}`);
    this.emit("change");
  }
  on(events, callback) {
    for (const event of events.split(/\s+/)) {
      if (!this.listeners.has(event)) this.listeners.set(event, new Set());
      this.listeners.get(event).add(callback);
    }
  }
  off(events, callback) {
    if (!events) return this.listeners.clear();
    for (const event of events.split(/\s+/)) {
      if (callback) this.listeners.get(event)?.delete(callback);
      else this.listeners.delete(event);
    }
  }
  emit(event) {
    for (const callback of [...(this.listeners.get(event) ?? [])]) callback();
  }
  save_changes() {} // nobody to tell: the page is the whole program
  send() {
    throw new Error("a static page has no kernel to send messages to");
  }
}

function readSpec(el) {
  const script = el.querySelector(":scope > script.pb-widget-spec");
  if (!script) throw new Error("the widget carries no spec");
  const spec = JSON.parse(script.textContent);
  if (!/^[\w-]+\.mjs$/.test(spec.esm)) throw new Error(`${spec.esm} is not a module of this book`);
  return spec;
}

function showError(el, error) {
  console.error("widget failed:", el.dataset.widget, error);
  el.dataset.state = "failed";
  const note = document.createElement("p");
  note.className = "pb-widget-error";
  note.setAttribute("role", "alert");
  note.textContent = `This widget could not be drawn (${error.message}). The summary still holds.`;
  el.prepend(note);
}

/** Draw one widget; its summary stays until drawing has worked. */
export async function start(el) {
  if (el.dataset.state) return;
  el.dataset.state = "starting";
  try {
    const spec = readSpec(el);
    const module = await import(new URL(spec.esm, base));
    const stage = document.createElement("div");
    stage.className = "pb-widget-stage";
    el.append(stage); // in the page while drawing, so that it can measure itself
    try {
      await module.default.render({ model: new Model(spec.state), el: stage });
    } catch (error) {
      stage.remove();
      throw error;
    }
    el.querySelector(":scope > .pb-widget-summary")?.setAttribute("hidden", "");
    el.dataset.state = "ready";
  } catch (error) {
    showError(el, error);
  }
}

function ensureStyles() {
  const href = new URL("widgets.css", base).href;
  const loaded = [...document.styleSheets].some((sheet) => sheet.href?.split("?")[0] === href);
  if (loaded) return;
  const link = Object.assign(document.createElement("link"), { rel: "stylesheet", href });
  document.head.append(link);
}

/** Draw every widget under `root` when it comes near the view (all of them before printing). */
export function watch(root = document) {
  const found = [...root.querySelectorAll(".pb-widget")].filter((el) => !el.dataset.state);
  if (!found.length) return;
  ensureStyles();
  const observer = new IntersectionObserver(
    (entries) => {
      for (const entry of entries.filter((e) => e.isIntersecting)) {
        observer.unobserve(entry.target);
        start(entry.target);
      }
    },
    { rootMargin: "400px" },
  );
  found.forEach((el) => observer.observe(el));
  addEventListener("beforeprint", () => found.forEach(start), { once: true });
}

watch();
