/** Line icons of the navigation, drawn on 24 × 24. */

const PATHS: Record<string, string> = {
  overview: "M4 19V9m5 10V5m5 14v-7m5 7V8",
  clients: "M9 11a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7m-6 9c0-3.5 2.5-6 6-6s6 2.5 6 6m1-15a3 3 0 0 1 0 6m5 8c0-2.500-1.500-4.500-3.500-5.300",
  top: "M4 6h16M4 12h10M4 18h5",
  topics: "M4 5h6M4 12h6m-6 7h6M14 12h6M10 5v14m0-7h4",
  subscriptions: "M4 6h16M4 12h10M4 18h7m5-2 2.500 2.500L22 14",
  retained: "M5 4h14v16l-7-4-7 4z",
  rules: "M4 6h5l6 12h5M4 18h5l2-4m4-8h5m-2-2 2 2-2 2m0 8 2 2-2 2",
  tool: "M4 5h16v14H4zm3 4 3 3-3 3m6 0h4",
  access: "M12 3l8 3v6c0 5-3.500 8-8 9-4.500-1-8-4-8-9V6zm-3 9 2 2 4-4",
  trouble: "M12 4 2.500 20h19zm0 6v5m0 2.500v.5",
  search: "M10.500 17a6.500 6.500 0 1 0 0-13 6.500 6.500 0 0 0 0 13m5-2 5 5",
  node: "M4 4h16v6H4zm0 10h16v6H4zm3-7h.01M7 17h.01",
};

export function Icon({ name }: { name: string }) {
  return (
    <svg viewBox="0 0 24 24" width="18" height="18" aria-hidden="true" class="nav-icon">
      <path d={PATHS[name] ?? ""} fill="none" stroke="currentColor" stroke-width="1.8" stroke-linecap="round" stroke-linejoin="round" />
    </svg>
  );
}

/** As in `public/icon.svg`. As an image it were a document of its own, which takes the browser longer than the rest here. */
export function Logo({ size }: { size: number }) {
  return (
    <svg viewBox="0 0 32 32" width={size} height={size} aria-hidden="true">
      <rect width="32" height="32" rx="7" fill="#0f766e" />
      <path d="M8 10h16M16 10v5c0 3-5 3-5 6s5 3 5 3" fill="none" stroke="#fff" stroke-width="3" stroke-linecap="round" stroke-linejoin="round" />
    </svg>
  );
}
