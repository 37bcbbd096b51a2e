import { defineConfig } from "vitest/config";

// Apart from the build, which is made without the packages of the tests.
export default defineConfig({
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  // One environment for all files: making it takes longer than they do.
  test: { environment: "happy-dom", include: ["tests/**/*.test.{ts,tsx}"], isolate: false, fileParallelism: false },
});
