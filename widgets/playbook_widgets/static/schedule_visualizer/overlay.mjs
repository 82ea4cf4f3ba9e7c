// What changes while the reader looks: what is pointed at and what hangs on it, the critical path, how far time has come.

const HALO = 3;

export class Overlay {
  constructor(app) {
    this.app = app;
  }

  paint(c, colours) {
    const { app } = this, { geometry: g } = app;
    Object.assign(this, { c, colours, geometry: g });
    c.clearRect(0, 0, g.width, g.height);
    c.save();
    c.beginPath();
    c.rect(g.left - 4, 0, g.right - g.left + 10, g.height);
    c.clip();
    if (app.inputs.path) app.sides.forEach((side, s) => side.path.length && this.path(side, s));
    if (app.clock !== null) this.future(app.clock);
    if (app.current) this.pointed(app.current);
    c.restore();
  }

  /** All that has not happened yet, pale; a line for now. */
  future(time) {
    const { c, geometry: g } = this, x = g.x(time);
    c.fillStyle = this.colours.surface;
    c.globalAlpha = 0.78;
    this.app.sides.forEach((side, s) => c.fillRect(x, g.tops[s] - 2, g.right + 4 - x, side.ranks * g.lane));
    c.globalAlpha = 1;
    c.fillStyle = this.colours.ink;
    c.fillRect(x - 0.75, 18, 1.5, g.height - 22);
  }

  /** The critical path stands out of the rest, slot to slot. */
  path(side, s) {
    const { c, geometry: g } = this, top = g.tops[s] - 2, [low, high] = g.view;
    c.fillStyle = this.colours.surface;
    c.globalAlpha = 0.62;
    c.fillRect(g.left, top, g.right - g.left + 2, side.ranks * g.lane);
    c.globalAlpha = 1;
    const shown = side.path.filter((i) => i >= 0 && side.end[i] >= low && side.start[i] <= high);
    for (const i of shown) this.app.painterFor(c, this.colours).slot(side, s, i);
    c.lineWidth = 1.5;
    c.strokeStyle = this.colours.ink;
    for (const i of shown) {
      const [x, y, wide, tall] = g.box(s, i);
      if (wide > 4) c.strokeRect(x + 0.75, y + 0.75, wide - 2.5, tall - 1.5);
    }
    for (let k = 1; k < side.path.length; k++) {
      const [from, to] = [side.path[k - 1], side.path[k]];
      if (from < 0 || to < 0 || side.rankOf[from] === side.rankOf[to] || side.end[from] < low || side.start[to] > high) continue;
      const [x0, y0, w0, h0] = g.box(s, from), [x1, y1, , h1] = g.box(s, to);
      this.line([[x0 + w0, y0 + h0 / 2], [x1, y1 + h1 / 2]], 2);
    }
  }

  line(points, width, dash = []) {
    const { c } = this;
    for (const [colour, wide] of [[this.colours.surface, width + HALO], [this.colours.ink, width]]) {
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
    const { geometry: g } = this, side = this.app.sides[s];
    if (kind === "idle") return this.outline(g.gapBox(s, at), 2, [4, 2], at, side);
    if (kind === "strip" || kind === "lane") return this.moment(s, rank, kind === "strip" ? time : null);
    for (const need of side.needs(at)) this.link(s, need, at, []);
    for (const other of side.givesTo(at)) this.link(s, at, other, [4, 3]);
    for (const need of side.needs(at)) this.outline(g.box(s, need), 1.5);
    for (const other of side.givesTo(at)) this.outline(g.box(s, other), 1.5, [3, 2]);
    this.outline(g.box(s, at), 2.5);
  }

  outline([x, y, wide, high], width, dash = []) {
    const { c } = this;
    for (const [colour, line] of [[this.colours.surface, width + 2], [this.colours.ink, width]]) {
      c.strokeStyle = colour;
      c.lineWidth = line;
      c.setLineDash(colour === this.colours.ink ? dash : []);
      c.strokeRect(x - 1, y - 1, wide + 1, high + 2);
    }
    c.setLineDash([]);
  }

  /** From the end of one action to the start of another that needs it. */
  link(s, from, to, dash) {
    const { c, geometry: g } = this, [x0, y0, w0, h0] = g.box(s, from), [x1, y1, , h1] = g.box(s, to);
    const a = [x0 + w0 - 1, y0 + h0 / 2], b = [x1, y1 + h1 / 2], bend = Math.max(12, Math.min(60, Math.abs(b[0] - a[0]) / 2));
    for (const [colour, wide] of [[this.colours.surface, 2 + HALO], [this.colours.ink, 2]]) {
      c.strokeStyle = c.fillStyle = colour;
      c.lineWidth = wide;
      c.setLineDash(colour === this.colours.ink ? dash : []);
      c.beginPath();
      c.moveTo(...a);
      c.bezierCurveTo(a[0] + bend, a[1], b[0] - bend, b[1], b[0] - 5, b[1]);
      c.stroke();
    }
    c.setLineDash([]);
    c.beginPath();
    c.moveTo(b[0] + 1, b[1]);
    c.lineTo(b[0] - 7, b[1] - 4.5);
    c.lineTo(b[0] - 7, b[1] + 4.5);
    c.fill();
  }

  /** A lane, or a moment of its strip of memory. */
  moment(s, rank, time) {
    const { c, geometry: g } = this, top = g.laneTop(s, rank);
    c.fillStyle = c.strokeStyle = this.colours.ink;
    if (time === null) return this.outline([g.left, top, g.right - g.left, g.bar], 1.5, [4, 3]);
    c.fillRect(g.x(time) - 0.5, top + g.bar, 1, g.strip + 2);
  }
}
