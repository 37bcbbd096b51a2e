import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { brotliCompressSync, constants, gzipSync } from "node:zlib";
import { defineConfig, type Plugin } from "vite";

const OUT = join(import.meta.dirname, "..", "management", "dashboard", "static");

/** Writes `.gz` and `.br` beside every text file of the build, where that is smaller. */
function compressed(): Plugin {
  let out = OUT;
  return {
    name: "compressed",
    apply: "build",
    configResolved(config) {
      out = config.build.outDir;
    },
    closeBundle() {
      for (const entry of readdirSync(out, { recursive: true, withFileTypes: true })) {
        if (!entry.isFile() || !/\.(html|js|css|svg|json)$/.test(entry.name)) continue;
        const file = join(entry.parentPath, entry.name);
        const bytes = readFileSync(file);
        const gzip = gzipSync(bytes, { level: 9 });
        const brotli = brotliCompressSync(bytes, {
          params: { [constants.BROTLI_PARAM_QUALITY]: 11, [constants.BROTLI_PARAM_SIZE_HINT]: bytes.length },
        });
        if (gzip.length < bytes.length) writeFileSync(`${file}.gz`, gzip);
        if (brotli.length < bytes.length) writeFileSync(`${file}.br`, brotli);
      }
    },
  };
}

// `npm run dev` with a node beside it: TAIPAN_DASHBOARD=http://127.0.0.1:18083
const node = process.env["TAIPAN_DASHBOARD"] ?? "http://127.0.0.1:18083";

export default defineConfig({
  // Relative: the same files are served at `/` of one port and at `/dashboard/` of another.
  base: "./",
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  plugins: [compressed()],
  build: {
    outDir: OUT,
    emptyOutDir: true,
    manifest: true,
    target: "es2022",
    // A `data:` address is none of ours: the Content-Security-Policy refuses it.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
  },
  server: { proxy: { "/api": { target: node, changeOrigin: true, headers: { origin: node } } } },
});
