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
