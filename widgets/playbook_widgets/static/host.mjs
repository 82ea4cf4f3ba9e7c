// The page runtime of the static book: gives each widget's module the model it would have in a kernel.
//
// A widget is an element `.pb-widget` with its spec in a script of type application/json: the module to draw with
// (a file beside this one), the function that computes its outputs, and the first state. Widgets are drawn when they come
// near the view, one failing widget leaves the others alone, and nothing is asked of any other host. Python, which all
// widgets of a page share, is loaded when the first of them needs it.

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
  save_changes() {} // nobody to tell: all that the widget shows is in its state
  send() {
    throw new Error("a static page has no kernel to send messages to");
  }
}

/** Python in a web worker, one for the whole page. */
class Python {
  constructor() {
    this.calls = new Map();
    this.count = 0;
  }
  /** Resolves when Python is there; the first call starts it. */
  start() {
    this.ready ??= new Promise((resolve, reject) => {
      this.refuse = reject;
      performance.mark("pb-python-start");
      this.worker = new Worker(new URL("python_worker.mjs", base), { type: "module" });
      this.worker.onmessage = ({ data }) => {
        if (data.ready) {
          performance.measure("pb-python", { start: "pb-python-start", detail: { snapshot: data.snapshot } });
          this.up = true;
          resolve();
        } else if (data.failed) reject(new Error(data.failed));
        else this.settle(data);
      };
      this.worker.onerror = (event) => reject(new Error(event.message || "the worker could not be loaded"));
    });
    return this.ready;
  }
  settle({ id, text, error }) {
    const { resolve, reject } = this.calls.get(id);
    this.calls.delete(id);
    if (error) reject(new Error(error));
    else resolve(text);
  }
  /** What a function says to a widget's `model`, as JSON. What has not ended after `limit` seconds is ended. */
  async call(model, text) {
    await this.start();
    return new Promise((resolve, reject) => {
      const id = ++this.count,
        { target, limit } = model;
      this.calls.set(id, { resolve, reject });
      this.worker.postMessage({ id, target, text });
      const late = () => this.calls.has(id) && this.stop(model, `no answer within ${limit} seconds`);
      if (limit) setTimeout(late, limit * 1000);
    });
  }
  /** What runs can only be ended together with its Python; the next call starts another one. */
  stop(model, why = "") {
    if (!this.ready) return;
    this.worker.terminate();
    this.refuse(new Ended(model, why)); // where it is still to come
    this.ready = this.up = undefined;
    for (const { reject } of this.calls.values()) reject(new Ended(model, why));
    this.calls.clear();
  }
}

/** A call was ended for a `model`, not always its own; without a message, since nobody waits for it any more. */
class Ended extends Error {
  constructor(model, why) {
    super(why);
    this.model = model;
  }
}

const LONG = 3000; // ms: Python starts again in less than what is left of a longer call

const python = new Python();

/** The model of a widget whose outputs a Python function computes from its inputs. */
export class ComputedModel extends Model {
  constructor(state, target, limit) {
    super({ ...state, status: "idle" });
    Object.assign(this, { target, limit });
    this.running = false;
  }
  /** Start Python now, because it is about to be needed. */
  async wake() {
    if (this.get("status") !== "idle" || python.up) return;
    this.set("status", "starting");
    try {
      await python.start();
      if (this.get("status") === "starting") this.set("status", "idle");
    } catch (error) {
      if (!(error instanceof Ended)) this.fail(error);
    }
  }
  /** Compute the outputs of the inputs as they are now. While a call runs, later inputs wait, and the latest win. */
  async save_changes() {
    Object.assign(this, { stale: true, stopped: false });
    if (this.running) return void (python.up && performance.now() - this.began > LONG && python.stop(this));
    this.running = true;
    try {
      while (this.stale) await this.answer();
      this.set("status", this.stopped ? "stopped" : "idle");
    } catch (error) {
      this.fail(error);
    } finally {
      this.running = false;
    }
  }
  async answer() {
    this.stale = false;
    this.set("status", python.up ? "busy" : "starting");
    this.began = performance.now();
    try {
      await python.start();
      this.stale = false; // what was set until now is in what is asked
      this.set("status", "busy");
      const text = await python.call(this, JSON.stringify(this.get("inputs")));
      this.set("outputs", JSON.parse(text));
      performance.measure("pb-compute", { start: this.began });
    } catch (error) {
      if (!(error instanceof Ended) || (error.model === this && error.message)) throw error;
      if (error.model !== this) this.stale = true; // another widget's call was ended, and this one's with it
    }
  }
  /** The reader waits no longer. */
  stop() {
    Object.assign(this, { stale: false, stopped: true });
    python.stop(this);
  }
  fail(error) {
    console.error("Python failed:", error);
    this.set("status", `failed: ${error.message}`);
  }
}

/** What a tool was left at, on this machine alone; a browser may keep nothing. */
const memory = {
  get(name) {
    try {
      return localStorage.getItem(`playbook:tool:${name}`);
    } catch {
      return null;
    }
  },
  set(name, text) {
    try {
      text ? localStorage.setItem(`playbook:tool:${name}`, text) : localStorage.removeItem(`playbook:tool:${name}`);
    } catch {}
  },
};

/** Keep a widget's inputs in the page's address, "#name?…", and take them from there: when it opens, and on "back". With
    `keep`, as in the tools, they are what they were at the last visit, unless the address says otherwise. */
class Address {
  constructor(name, module, model, keep) {
    Object.assign(this, { name, module, model, keep });
    this.plain = this.text();
    this.show();
    model.on("change:inputs change:outputs", () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.write(), 200);
    });
    addEventListener("hashchange", () => {
      if (Address.written(name) === null)
        clearTimeout(this.timer); // the reader has gone elsewhere
      else this.read();
    });
  }
  /** The state as text. What Python made of it may say it in fewer words. */
  text() {
    return this.module.encode(this.model.get("inputs"), this.model.get("outputs"));
  }
  static written(name) {
    const hash = decodeURIComponent(location.hash.slice(1));
    return hash.startsWith(`${name}?`) ? hash.slice(name.length + 1) : null;
  }
  read() {
    const text = Address.written(this.name);
    if (text === null || text === this.text()) return false;
    this.take(text);
    return true;
  }
  take(text) {
    this.model.set("inputs", this.module.decode(text));
    this.model.save_changes();
  }
  /** Go on where the reader has stopped, and say so in `el`, with a way back to the start. */
  recall(el) {
    const text = this.keep && Address.written(this.name) === null && memory.get(this.name);
    if (!text || text === this.plain) return;
    const again = document.createElement("button");
    again.type = "button";
    again.textContent = "Start anew";
    const note = document.createElement("p");
    note.className = "pb-recalled";
    note.append("As you left it. ", again);
    again.addEventListener("click", () => {
      note.remove();
      this.take(this.plain);
    });
    el.prepend(note);
    this.take(text);
  }
  write() {
    const text = this.text();
    if (this.keep) memory.set(this.name, text === this.plain ? "" : text);
    const hash = text === this.plain ? "" : `#${this.name}?${text}`;
    const own = Address.written(this.name) !== null;
    // A late answer that changes nothing must not take the address from a widget that is still being drawn.
    // replaceState, so that a dragged slider leaves no hundred entries behind.
    if (own || (hash && text !== this.last))
      history.replaceState(history.state, "", hash || location.pathname + location.search);
    this.last = text;
    this.show();
  }
  show() {
    const text = this.text();
    this.model.set("link", `${location.href.split("#")[0]}#${this.name}?${text}`);
    this.model.set("site", new URL("../../", base).href);
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
    await Promise.all((spec.css ?? []).map(loadStyles));
    const module = await import(new URL(spec.esm, base));
    const model = spec.compute ? new ComputedModel(spec.state, spec.compute, spec.limit) : new Model(spec.state);
    const address = spec.name && module.encode ? new Address(spec.name, module, model, spec.start === "view") : null;
    const stage = document.createElement("div");
    stage.className = "pb-widget-stage";
    el.append(stage); // in the page while drawing, so that it can measure itself
    try {
      await module.default.render({ model, el: stage });
    } catch (error) {
      stage.remove();
      throw error;
    }
    el.querySelector(":scope > .pb-widget-summary")?.setAttribute("hidden", "");
    el.dataset.state = "ready";
    if (address?.read()) el.scrollIntoView();
    else address?.recall(el);
    if (spec.compute) wakeEarly(el, model, spec.start);
  } catch (error) {
    showError(el, error);
  }
}

/** Load Python before it is needed: when a pointer or the focus comes near, at once, or when the module says so. */
function wakeEarly(el, model, when) {
  if (when === "view") return void model.wake();
  if (when === "module") return;
  for (const event of ["pointerenter", "focusin", "touchstart"]) {
    el.addEventListener(event, () => model.wake(), { once: true, passive: true });
  }
}

/** Load a style sheet of this folder once; resolves when it is there, or cannot be had. */
function loadStyles(file) {
  const { href } = new URL(file, base);
  if ([...document.styleSheets].some((sheet) => sheet.href?.split("?")[0] === href)) return Promise.resolve();
  const link = Object.assign(document.createElement("link"), { rel: "stylesheet", href });
  const loaded = new Promise((resolve) => (link.onload = link.onerror = resolve));
  document.head.append(link);
  return loaded;
}

/** Draw every widget under `root` when it comes near the view (all of them before printing). */
export function watch(root = document) {
  const found = [...root.querySelectorAll(".pb-widget")].filter((el) => !el.dataset.state);
  if (!found.length) return;
  loadStyles("widgets.css");
  const observer = new IntersectionObserver(
    (entries) => {
      for (const entry of entries.filter((e) => e.isIntersecting)) {
        observer.unobserve(entry.target);
        start(entry.target);
      }
    },
    { rootMargin: "400px" },
  );
  const asked = (el) => el.id && Address.written(el.id) !== null; // the address asks for it
  for (const el of found) {
    if (asked(el)) start(el);
    else observer.observe(el);
  }
  addEventListener("hashchange", async () => {
    for (const el of found.filter(asked)) {
      await start(el);
      el.scrollIntoView({ block: "nearest" }); // a link in the text may be far from what it changes
    }
  });
  addEventListener("beforeprint", () => found.forEach(start), { once: true });
}

watch();
