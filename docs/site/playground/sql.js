// SQL as text: taken apart into statements, and made of values.

const COMMENT = /--[^\n]*|\/\*[^]*?\*\//;
const STRING = /[eE]'(?:[^'\\]|\\[^]|'')*'|'(?:[^']|'')*'|"(?:[^"]|"")*"/;
const DOLLARS = /(\$(?:[A-Za-z_]\w*)?\$)[^]*?\1/;
const TOKEN = new RegExp(`${COMMENT.source}|${STRING.source}|${DOLLARS.source}|\\w+|;|[^]`, "g");

/** The statements of a text. A semicolon in a string, a comment or a `begin atomic` body ends none. */
export function statements(text) {
  const found = [];
  let current = "";
  let depth = 0; // inside of begin atomic … end
  let before = "";
  for (const [token] of text.matchAll(TOKEN)) {
    const word = token.toLowerCase();
    if (word === "atomic" && before === "begin") depth = 1;
    else if (depth && word === "case") depth += 1;
    else if (depth && word === "end") depth -= 1;
    if (/\w/.test(token)) before = word;
    if (token === ";" && !depth) {
      found.push(current);
      current = "";
    } else current += token;
  }
  found.push(current);
  return found.map((one) => one.trim()).filter((one) => one.replace(/--[^\n]*|\/\*[^]*?\*\//g, "").trim());
}

/** A value as SQL has it. Objects become JSON, arrays of numbers and of texts arrays. */
export function literal(value) {
  if (value === null || value === undefined) return "null";
  if (typeof value === "number" || typeof value === "boolean") return String(value);
  if (Array.isArray(value)) return quoted(`{${value.map(element).join(",")}}`);
  return quoted(typeof value === "string" ? value : JSON.stringify(value));
}

const element = (value) => (typeof value === "string" ? `"${value.replace(/["\\]/g, "\\$&")}"` : value);
const quoted = (text) => `'${text.replaceAll("'", "''")}'`;
