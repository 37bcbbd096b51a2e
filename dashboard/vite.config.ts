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

/** Above this, most of a program is not called when it is loaded: editors and codecs. */
const COMPILED_AT_ONCE = 64 * 1024;

/**
 * Has V8 compile a program's functions while it is read, in a thread beside the page's, instead of each in the page's
 * when it is called first. https://v8.dev/blog/explicit-compile-hints
 */
function compiledAtOnce(): Plugin {
  return {
    name: "compiled-at-once",
    apply: "build",
    generateBundle: {
      order: "post", // Vite puts a line before the code of the entry, and the comment has to be the first
      handler(_, bundle) {
        for (const one of Object.values(bundle)) {
          if (one.type === "chunk" && one.code.length < COMPILED_AT_ONCE) one.code = `//# allFunctionsCalledOnLoad\n${one.code}`;
        }
      },
    },
  };
}

// `npm run dev` with a node beside it: TAIPAN_DASHBOARD=http://127.0.0.1:18083
const node = process.env["TAIPAN_DASHBOARD"] ?? "http://127.0.0.1:18083";

export default defineConfig({
  // Relative: the same files are served at `/` of one port and at `/dashboard/` of another.
  base: "./",
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  plugins: [compiledAtOnce(), compressed()],
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
