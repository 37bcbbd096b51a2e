/** Where the nodes of a cluster stand in its picture. */

export interface Spot {
  x: number;
  y: number;
}

/** On an ellipse in this area; the first one at its left, two of them beside each other. */
export function spots(count: number, width: number, height: number): Spot[] {
  return Array.from({ length: count }, (_, index) => {
    const angle = Math.PI + (2 * Math.PI * index) / count;
    return { x: Math.round((width / 2) * (1 + Math.cos(angle))), y: Math.round((height / 2) * (1 + Math.sin(angle))) };
  });
}

/** The two directions of a link run beside each other, so far apart from the line between the nodes. */
const ASIDE = 6;

/** Of a line of text. */
const LINE = 14;

/** An arrow between the boxes of two nodes, and the place of its text: on its own side, nearer to where it begins. */
export function between(from: Spot, to: Spot, box: { width: number; height: number }, lines = 1): { begin: Spot; end: Spot; text: Spot } {
  const length = Math.hypot(to.x - from.x, to.y - from.y) || 1;
  const along = { x: (to.x - from.x) / length, y: (to.y - from.y) / length };
  // From the middle of a box to its edge.
  const edge = Math.min(box.width / 2 / Math.abs(along.x), box.height / 2 / Math.abs(along.y)) + 3;
  const point = (distance: number, aside: number): Spot => ({
    x: Math.round(from.x + along.x * distance - along.y * aside),
    y: Math.round(from.y + along.y * distance + along.x * aside),
  });
  const wide = lines > 1 ? 14 : 0;
  const text = point(edge + (length - 2 * edge) * 0.4, ASIDE + 8 + (18 + 2 * wide) * Math.abs(along.y) + wide * Math.abs(along.x) * Math.abs(along.x));
  const above = along.x < 0 ? (lines - 1) * LINE : 0;
  return { begin: point(edge, ASIDE), end: point(length - edge, ASIDE), text: { x: text.x, y: text.y + 4 - above } };
}
