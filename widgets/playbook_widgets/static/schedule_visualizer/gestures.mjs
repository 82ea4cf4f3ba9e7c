// Pointer, wheel and keys on the picture, as moves of the visualizer.

export class Gestures {
  constructor(app) {
    Object.assign(this, { app, pointers: new Map(), start: null });
    const { stage } = app.scene,
      on = (type, handler, options) => stage.addEventListener(type, handler, options);
    on("keydown", (e) => this.key(e));
    on("pointerdown", (e) => this.down(e));
    on("pointermove", (e) => this.move(e));
    on("pointerup", (e) => this.up(e));
    on("pointercancel", (e) => this.up(e));
    on("pointerleave", () => app.pointing.point(null));
    on("dblclick", (e) => !app.building && app.scene.zoomTo(app.scene.geometry.at(...this.at(e))));
    on("wheel", (e) => this.wheel(e), { passive: false });
  }

  at(e) {
    const box = this.app.scene.stage.getBoundingClientRect();
    return [e.clientX - box.left, e.clientY - box.top];
  }

  down(e) {
    if (e.button) return;
    const { app } = this,
      [x] = this.at(e);
    app.scene.stage.setPointerCapture(e.pointerId);
    this.pointers.set(e.pointerId, x);
    this.start = { x, view: [...app.scene.view], moved: false };
    if (this.pointers.size === 2)
      this.pinch = {
        spread: this.spread(),
        view: [...app.scene.view],
        times: [...this.pointers.values()].map((p) => app.scene.geometry.time(p)),
      };
  }

  spread() {
    const [a, b] = [...this.pointers.values()];
    return Math.max(Math.abs(a - b), 10);
  }

  move(e) {
    const { app } = this,
      point = this.at(e);
    if (!this.pointers.has(e.pointerId)) return app.pointing.point(app.scene.geometry.at(...point), point);
    this.pointers.set(e.pointerId, point[0]);
    if (this.pointers.size === 2) return this.pinchTo();
    this.start.moved ||= Math.abs(point[0] - this.start.x) > 4;
    if (!this.start.moved) return;
    app.pointing.point(null);
    const { left, right } = app.scene.geometry,
      shift = ((this.start.x - point[0]) / (right - left)) * (this.start.view[1] - this.start.view[0]);
    app.scene.look(this.start.view[0] + shift, this.start.view[1] + shift);
  }

  /** Two fingers keep the times they touched under them. */
  pinchTo() {
    const { app } = this,
      { left, right } = app.scene.geometry;
    this.start.moved = true;
    const span = ((this.pinch.view[1] - this.pinch.view[0]) * this.pinch.spread) / this.spread();
    const [a, b] = [...this.pointers.values()],
      time = (this.pinch.times[0] + this.pinch.times[1]) / 2,
      low = time - (((a + b) / 2 - left) / (right - left)) * span;
    app.scene.look(low, low + span);
  }

  up(e) {
    const { app } = this,
      known = this.pointers.delete(e.pointerId);
    if (!known || this.start.moved || e.type !== "pointerup") return;
    const point = this.at(e),
      found = app.scene.geometry.at(...point);
    if (app.building && found?.side === 0 && found.kind !== "slot" && found.kind !== "strip")
      return app.builder.add(found.rank);
    app.pointing.pin(found?.kind === "lane" ? null : found, point);
  }

  wheel(e) {
    const { app } = this,
      sideways = Math.abs(e.deltaX) > Math.abs(e.deltaY) || e.shiftKey;
    if (!(e.ctrlKey || e.metaKey || sideways)) return; // a plain wheel scrolls the page
    if (sideways && !app.scene.zoomed && !e.ctrlKey) return;
    e.preventDefault();
    if (sideways && !e.ctrlKey) return app.scene.pan((e.deltaX || e.deltaY) / app.scene.geometry.width);
    app.scene.zoom(Math.exp(Math.max(-1, Math.min(1, e.deltaY / 120))), app.scene.geometry.time(this.at(e)[0]));
  }

  key(e) {
    const { app } = this,
      { key } = e;
    if (e.metaKey || e.altKey || (e.ctrlKey && key !== "z")) return;
    const moves = {
      ArrowLeft: () => (e.shiftKey ? app.scene.pan(-0.2) : app.pointing.walk(-1)),
      ArrowRight: () => (e.shiftKey ? app.scene.pan(0.2) : app.pointing.walk(1)),
      ArrowUp: () => app.pointing.climb(-1),
      ArrowDown: () => app.pointing.climb(1),
      Home: () => app.pointing.walk(-Infinity),
      End: () => app.pointing.walk(Infinity),
      "+": () => app.scene.zoom(0.5),
      "=": () => app.scene.zoom(0.5),
      "-": () => app.scene.zoom(2),
      0: () => app.scene.all(),
      c: () => app.setPath(!app.inputs.path),
      Escape: () => app.pointing.pin(null),
      ".": () => app.forward(),
      ",": () => app.back(),
    };
    const action =
      (app.building && app.builder.key(e)) ||
      (e.ctrlKey
        ? null
        : key === "Enter" && app.pointing.pinned
          ? () => app.scene.zoomTo(app.pointing.pinned)
          : moves[key]);
    if (!action) return;
    e.preventDefault();
    action();
  }
}
