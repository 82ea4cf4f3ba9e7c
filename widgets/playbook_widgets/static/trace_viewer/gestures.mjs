// Pointer, wheel and keys on the timeline, as moves of the viewer.

export class Gestures {
  constructor(viewer) {
    Object.assign(this, { viewer, pointers: new Map() });
  }

  /** `on(target, type, handler, options)` listens until the viewer is closed. */
  listen(on) {
    const { stage } = this.viewer;
    on(stage, "keydown", (e) => this.key(e));
    on(stage, "pointerdown", (e) => this.down(e));
    on(stage, "pointermove", (e) => this.move(e));
    on(stage, "pointerup", (e) => this.up(e));
    on(stage, "pointercancel", (e) => this.up(e));
    on(stage, "pointerleave", () => this.viewer.setHover(-1));
    on(stage, "dblclick", (e) => this.viewer.zoomTo(this.viewer.timeline.at(...this.point(e))));
    on(stage, "wheel", (e) => this.wheel(e), { passive: false });
  }

  point(e) {
    const box = this.viewer.stage.getBoundingClientRect();
    return [e.clientX - box.left, e.clientY - box.top];
  }

  down(e) {
    const { viewer } = this;
    if (e.button) return;
    const [x] = this.point(e);
    viewer.stage.setPointerCapture(e.pointerId);
    this.pointers.set(e.pointerId, x);
    this.start = {
      x,
      time: viewer.timeline.time(x),
      view: [...viewer.view],
      moved: false,
      measure: viewer.measuring || e.shiftKey,
    };
    if (this.pointers.size === 2)
      this.pinch = {
        span: this.spread(),
        view: [...viewer.view],
        times: [...this.pointers.values()].map((p) => viewer.timeline.time(p)),
      };
  }

  spread() {
    const [a, b] = [...this.pointers.values()];
    return Math.max(Math.abs(a - b), 10);
  }

  move(e) {
    const { viewer } = this;
    const [x, y] = this.point(e);
    viewer.pointerX = x;
    if (!this.pointers.has(e.pointerId)) return viewer.setHover(viewer.timeline.at(x, y));
    this.pointers.set(e.pointerId, x);
    if (this.pointers.size === 2) return this.pinchTo();
    this.start.moved ||= Math.abs(x - this.start.x) > 3;
    if (!this.start.moved) return;
    viewer.hover = -1;
    if (this.start.measure) return viewer.setRange([this.start.time, viewer.timeline.time(x)]);
    viewer.stage.dataset.dragging = "";
    const shift = ((this.start.x - x) / viewer.timeline.width) * (this.start.view[1] - this.start.view[0]);
    viewer.show(this.start.view[0] + shift, this.start.view[1] + shift);
  }

  /** Two fingers keep the times they touched under them. */
  pinchTo() {
    const { viewer } = this;
    this.start.moved = true;
    const [low, high] = this.pinch.view,
      span = ((high - low) * this.pinch.span) / this.spread();
    const [a, b] = [...this.pointers.values()],
      middle = (a + b) / 2,
      time = (this.pinch.times[0] + this.pinch.times[1]) / 2;
    const start = time - (middle / viewer.timeline.width) * span;
    viewer.show(start, start + span);
  }

  up(e) {
    const { viewer } = this;
    const known = this.pointers.delete(e.pointerId);
    delete viewer.stage.dataset.dragging;
    if (known && !this.start.moved && e.type === "pointerup") viewer.setFocus(viewer.timeline.at(...this.point(e)));
  }

  wheel(e) {
    const { viewer } = this;
    const sideways = Math.abs(e.deltaX) > Math.abs(e.deltaY) || e.shiftKey;
    if (!(e.ctrlKey || e.metaKey || sideways)) return; // a plain wheel scrolls the page
    e.preventDefault();
    if (e.ctrlKey || e.metaKey)
      viewer.zoom(Math.exp(Math.max(-1, Math.min(1, e.deltaY / 120))), viewer.timeline.time(this.point(e)[0]));
    else viewer.pan((e.deltaX || e.deltaY) / viewer.timeline.width);
  }

  key(e) {
    const { viewer } = this;
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const actions = {
      ArrowLeft: () => viewer.pan(-0.15),
      ArrowRight: () => viewer.pan(0.15),
      ArrowUp: () => viewer.climb(-1),
      ArrowDown: () => viewer.climb(1),
      "+": () => viewer.zoom(0.5, this.anchor()),
      "=": () => viewer.zoom(0.5, this.anchor()),
      "-": () => viewer.zoom(2, this.anchor()),
      0: () => viewer.reset(),
      ".": () => viewer.step(1),
      ",": () => viewer.step(-1),
      Enter: () => viewer.zoomTo(viewer.focus),
      m: () => viewer.measureFocus(),
      M: () => viewer.measureFocus(),
      Escape: () => (viewer.setMeasuring(false), viewer.setRange(null), viewer.setFocus(-1)),
    };
    if (!actions[e.key]) return;
    e.preventDefault();
    actions[e.key]();
  }

  anchor() {
    const { viewer } = this;
    const i = viewer.focus,
      [low, high] = viewer.view;
    const middle = i < 0 ? NaN : (Math.max(viewer.trace.begin[i], low) + Math.min(viewer.trace.end[i], high)) / 2;
    return middle >= low && middle <= high ? middle : (low + high) / 2;
  }
}
