// node terms.js SETTINGS FILE...: what textlint's rule "terminology" finds in Markdown, one JSON object per line.
// SETTINGS is JSON: "terms", pairs of a pattern and a term, and parts of findings that are "ignored".
import { TextlintKernelDescriptor } from "@textlint/kernel";
import markdown from "@textlint/textlint-plugin-markdown";
import { createLinter } from "textlint";
import terminology from "textlint-rule-terminology";

const [settings, ...files] = process.argv.slice(2);
const { terms, ignored } = JSON.parse(settings);

const descriptor = new TextlintKernelDescriptor({
  plugins: [{ pluginId: "markdown", plugin: markdown.default ?? markdown }],
  rules: [{ ruleId: "terminology", rule: terminology, options: { terms } }],
  filterRules: [],
});
for (const { filePath, messages } of await createLinter({ descriptor }).lintFiles(files)) {
  for (const { line, message } of messages) {
    if (!ignored.some((each) => message.includes(each))) {
      console.log(JSON.stringify({ file: filePath, line, message }));
    }
  }
}
