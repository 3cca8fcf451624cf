/**
 * Writes gen/proto: copies of the protos without their validation rules, which are the server's own. Clients in any
 * language can compile them with protoc alone. The copies also name a package for Go, which protoc-gen-go requires, and
 * separate files for Java.
 *
 * Part of `npm run generate`.
 */
import { mkdir, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';

const ROOT = path.resolve(import.meta.dirname, '..');
const FROM = path.join(ROOT, 'proto/anabranch/v1');
const TO = path.join(ROOT, 'gen/proto/anabranch/v1');

/** Comments and strings are taken whole, so that no bracket in them counts. */
const TOKEN = /\/\/[^\n]*|\/\*[\s\S]*?\*\/|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[\s\S]/g;
const CLOSES: Readonly<Record<string, string>> = { '[': ']', '{': '}', '(': ')' };

/** What each file begins with, in place of the line that names its package. */
const PACKAGE = `package anabranch.v1;

option go_package = "anabranch/v1;anabranchv1";
option java_multiple_files = true;
`;

const names = (await readdir(FROM)).filter((name) => name.endsWith('.proto'));
await rm(path.join(ROOT, 'gen/proto'), { recursive: true, force: true });
await mkdir(TO, { recursive: true });
for (const name of names)
  await writeFile(path.join(TO, name), withoutRules(await readFile(path.join(FROM, name), 'utf8')));

function withoutRules(proto: string): string {
  const tokens = proto.match(TOKEN) ?? [];
  let text = '';
  for (let at = 0; at < tokens.length; ) {
    const rest = tokens.slice(at, at + 40).join('');
    if (/^option\s+\(buf\.validate\./.test(rest)) {
      at = afterStatement(tokens, at);
    } else if (/^\[\s*\(buf\.validate\./.test(rest)) {
      text = text.trimEnd();
      at = afterGroup(tokens, at);
    } else {
      text += tokens[at];
      at += 1;
    }
  }
  return text.replace('import "buf/validate/validate.proto";\n', '').replace(/^package anabranch\.v1;\n/m, PACKAGE);
}

/** The place after the semicolon that ends a statement. */
function afterStatement(tokens: readonly string[], start: number): number {
  let at = start;
  while (tokens[at] !== ';') at = afterGroup(tokens, at);
  return at + 1;
}

/** The place after a token, or after the bracket that closes the group that it opens. */
function afterGroup(tokens: readonly string[], start: number): number {
  const closing = CLOSES[tokens[start] ?? ''];
  let at = start + 1;
  if (closing === undefined) return at;
  while (tokens[at] !== closing) {
    if (at >= tokens.length) throw new Error(`no ${closing} closes the ${tokens[start]} at ${start}`);
    at = afterGroup(tokens, at);
  }
  return at + 1;
}
