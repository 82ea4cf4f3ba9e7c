// What changes while the reader looks: what is pointed at and what hangs on it, the critical path, how far time has come.

const HALO = 3;

export class Overlay {
  constructor(app, scene) {
    Object.assign(this, { app, scene });
  }

  paint(c, colours) {
    const { app } = this,
      { geometry: g } = this.scene,
      { current } = app.pointing;
    Object.assign(this, { c, colours, geometry: g });
    c.clearRect(0, 0, g.width, g.height);
    c.save();
    c.beginPath();
    c.rect(g.left - 4, 0, g.right - g.left + 10, g.height);
    c.clip();
    if (app.inputs.path) app.sides.forEach((side, s) => side.path.length && this.path(side, s));
    if (app.clock !== null) this.future(app.clock);
    if (current) this.pointed(current);
    c.restore();
  }

  /** All that has not happened yet, pale; a line for now. */
  future(time) {
    const { c, geometry: g } = this,
      x = g.x(time);
    c.fillStyle = this.colours.surface;
    c.globalAlpha = 0.78;
    this.app.sides.forEach((side, s) => c.fillRect(x, g.tops[s] - 2, g.right + 4 - x, side.ranks * g.lane));
    c.globalAlpha = 1;
    c.fillStyle = this.colours.ink;
    c.fillRect(x - 0.75, 18, 1.5, g.height - 22);
  }

  /** The critical path stands out of the rest, slot to slot. */
  path(side, s) {
    const { c, geometry: g } = this,
      top = g.tops[s] - 2,
      [low, high] = g.view;
    c.fillStyle = this.colours.surface;
    c.globalAlpha = 0.62;
    c.fillRect(g.left, top, g.right - g.left + 2, side.ranks * g.lane);
    c.globalAlpha = 1;
    const shown = side.path.filter((i) => i >= 0 && side.end[i] >= low && side.start[i] <= high);
    const painter = this.scene.painter.onto(c, this.colours);
    for (const i of shown) painter.slot(side, s, i);
    c.lineWidth = 1.5;
    c.strokeStyle = this.colours.ink;
    for (const i of shown) {
      const [x, y, wide, tall] = g.box(s, i);
      if (wide > 4) c.strokeRect(x + 0.75, y + 0.75, wide - 2.5, tall - 1.5);
    }
    for (let k = 1; k < side.path.length; k++) {
      const [from, to] = [side.path[k - 1], side.path[k]];
      if (from < 0 || to < 0 || side.rankOf[from] === side.rankOf[to] || side.end[from] < low || side.start[to] > high)
        continue;
      const [x0, y0, w0, h0] = g.box(s, from),
        [x1, y1, , h1] = g.box(s, to);
      this.line(
        [
          [x0 + w0, y0 + h0 / 2],
          [x1, y1 + h1 / 2],
        ],
        2,
      );
    }
  }

  line(points, width, dash = []) {
    const { c } = this;
    for (const [colour, wide] of [
      [this.colours.surface, width + HALO],
      [this.colours.ink, width],
    ]) {
      c.strokeStyle = colour;
      c.lineWidth = wide;
      c.setLineDash(colour === this.colours.ink ? dash : []);
      c.beginPath();
      points.forEach(([x, y], k) => (k ? c.lineTo(x, y) : c.moveTo(x, y)));
      c.stroke();
    }
    c.setLineDash([]);
  }

  pointed({ side: s, kind, at, rank, time }) {
    const { geometry: g } = this,
      side = this.app.sides[s];
    if (kind === "idle") return this.gap(s, at);
    if (kind === "strip" || kind === "lane") return this.moment(s, rank, kind === "strip" ? time : null);
    for (const need of side.needs(at)) this.link(s, need, at, []);
    for (const other of side.givesTo(at)) this.link(s, at, other, [4, 3]);
    for (const need of side.needs(at)) this.outline(g.box(s, need), 1.5);
    for (const other of side.givesTo(at)) this.outline(g.box(s, other), 1.5, [3, 2]);
    this.outline(g.box(s, at), 2.5);
  }

  /** A gap, and what its end waits for. */
  gap(s, at) {
    const { geometry: g } = this,
      { idle } = this.app.sides[s],
      [next, need] = [idle.next[at], idle.waits_for[at]];
    if (next >= 0 && need >= 0) {
      this.link(s, need, next, []);
      this.outline(g.box(s, need), 1.5);
    }
    this.outline(g.gapBox(s, at), 2, [4, 2]);
  }

  outline([x, y, wide, high], width, dash = []) {
    const { c } = this;
    for (const [colour, line] of [
      [this.colours.surface, width + 2],
      [this.colours.ink, width],
    ]) {
      c.strokeStyle = colour;
      c.lineWidth = line;
      c.setLineDash(colour === this.colours.ink ? dash : []);
      c.strokeRect(x - 1, y - 1, wide + 1, high + 2);
    }
    c.setLineDash([]);
  }

  /** From the end of one action to the start of another that needs it: straight to another rank, in a bow on the same one. */
  link(s, from, to, dash) {
    const { c, geometry: g } = this,
      side = this.app.sides[s],
      [x0, y0, w0, h0] = g.box(s, from),
      [x1, y1, , h1] = g.box(s, to);
    const down = side.rankOf[to] - side.rankOf[from],
      a = [x0 + w0 - 1.5, down > 0 ? y0 + h0 : down < 0 ? y0 : y0 + h0],
      b = [x1 + 1.5, down > 0 ? y1 : down < 0 ? y1 + h1 : y1 + h1];
    const bow = down ? null : [(a[0] + b[0]) / 2, a[1] + Math.min(2 * g.strip + 4, 6 + Math.abs(b[0] - a[0]) / 3)];
    for (const [colour, wide] of [
      [this.colours.surface, 2 + HALO],
      [this.colours.ink, 2],
    ]) {
      c.strokeStyle = colour;
      c.lineWidth = wide;
      c.setLineDash(colour === this.colours.ink ? dash : []);
      c.beginPath();
      c.moveTo(...a);
      bow ? c.quadraticCurveTo(...bow, ...b) : c.lineTo(...b);
      c.stroke();
    }
    c.setLineDash([]);
    this.head(bow ?? a, b);
  }

  /** An arrow's head at `b`, coming from `a`. */
  head(a, b) {
    const { c } = this,
      angle = Math.atan2(b[1] - a[1], b[0] - a[0]);
    c.save();
    c.translate(...b);
    c.rotate(angle);
    c.fillStyle = this.colours.ink;
    c.beginPath();
    c.moveTo(1, 0);
    c.lineTo(-7, -4);
    c.lineTo(-7, 4);
    c.fill();
    c.restore();
  }

  /** A lane, or a moment of its strip of memory. */
  moment(s, rank, time) {
    const { c, geometry: g } = this,
      top = g.laneTop(s, rank);
    c.fillStyle = c.strokeStyle = this.colours.ink;
    if (time === null) return this.outline([g.left, top, g.right - g.left, g.bar], 1.5, [4, 3]);
    c.fillRect(g.x(time) - 0.5, top + g.bar, 1, g.strip + 2);
  }
}
