// node grammar.js SETTINGS FILE...: what Harper finds in Markdown, one JSON object per line. SETTINGS is JSON: "words"
// that exist, and parts of findings that are "ignored".
import { readFileSync } from "node:fs";
import { LocalLinter } from "harper.js";
import { binary } from "harper.js/binary";

const BRITISH = 1;
const KINDS = new Set(["Agreement", "Grammar", "Miscellaneous", "Redundancy", "Repetition", "Typo"]);
const [settings, ...files] = process.argv.slice(2);
const { words, ignored } = JSON.parse(settings);

const linter = new LocalLinter({ binary, dialect: BRITISH });
await linter.setup();
await linter.importWords(words);
for (const file of files) {
  const text = readFileSync(file, "utf8");
  for (const found of await linter.lint(text, { language: "markdown" })) {
    const { start, end } = found.span();
    const line = text.slice(0, start).split("\n").length;
    const message = found.message();
    const part = text.slice(start, end);
    if (KINDS.has(found.lint_kind()) && !ignored.some((each) => `${part}: ${message}`.includes(each))) {
      console.log(JSON.stringify({ file, line, text: part, message }));
    }
  }
}
