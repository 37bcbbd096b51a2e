/** A small line without axes: how a figure came to where it is. */

const WIDTH = 72;
const HEIGHT = 24;
/** As many points as one can tell apart. */
const POINTS = 36;

/** The means of parts of equal length; null where nothing is known of a part. */
export function parts(values: (number | null)[], count = POINTS): (number | null)[] {
  const size = Math.max(1, Math.ceil(values.length / count));
  const found: (number | null)[] = [];
  for (let from = 0; from < values.length; from += size) {
    const known = values.slice(from, from + size).filter((value) => value !== null);
    found.push(known.length === 0 ? null : known.reduce((sum, value) => sum + value, 0) / known.length);
  }
  return found;
}

/** The path of an `svg` of this size. It begins anew behind what is not known. */
export function path(values: (number | null)[], width = WIDTH, height = HEIGHT): string {
  const known = values.filter((value) => value !== null);
  const high = Math.max(...known, 0);
  const low = Math.min(...known, 0);
  const scale = high === low ? 0 : (height - 2) / (high - low);
  const step = values.length > 1 ? width / (values.length - 1) : 0;
  let pen = "M";
  return values
    .map((value, index) => {
      if (value === null) {
        pen = "M";
        return "";
      }
      const point = `${pen}${(index * step).toFixed(1)} ${(height - 1 - (value - low) * scale).toFixed(1)}`;
      pen = "L";
      return point;
    })
    .join("");
}

export function Sparkline({ values }: { values: (number | null)[] }) {
  const line = parts(values);
  return (
    <svg class="sparkline" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true">
      <path d={path(line)} />
    </svg>
  );
}
