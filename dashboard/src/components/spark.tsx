/** Counts of some periods as bars; what they say is in the title and for a screen reader. */
export function Spark({ counts, title }: { counts: number[]; title: (counts: string) => string }) {
  const most = Math.max(1, ...counts);
  const said = title(counts.join(", "));
  return (
    <svg class="spark" viewBox={`0 0 ${counts.length * 6} 20`} width={counts.length * 6} height={20} role="img" aria-label={said}>
      <title>{said}</title>
      {counts.map((count, place) => {
        const height = count === 0 ? 1 : Math.max(2, Math.round((count / most) * 20));
        return <rect key={place} x={place * 6} y={20 - height} width={4} height={height} rx={1} class={count === 0 ? "none" : ""} />;
      })}
    </svg>
  );
}
