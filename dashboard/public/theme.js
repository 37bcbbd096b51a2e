// Before the first paint, so that a page that is to be dark is never light for a moment.
try {
  const chosen = localStorage.getItem("taipan.theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
} catch {
  // No storage: the system's theme.
}
