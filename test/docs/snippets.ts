/**
 * The runnable snippets of a document, unchanged.
 *
 * A fenced block that a test runs has this comment on the line before its fence (it renders as nothing):
 *
 *     <!-- snippet: python-write -->
 *     ```python
 *     …
 *     ```
 *
 * A name starts with its group, which is followed by a hyphen, and is unique in its document. The blocks of one group
 * and one language, in the order of the document, are one program (`programOf`): a reader may paste them one below the
 * other. They call the server at ADDRESS; a test replaces that by the address of its own server (`pointedAt`). Nothing
 * else may be changed before they run.
 */
import { readFileSync } from 'node:fs';

/** The address in every snippet. */
export const ADDRESS = '127.0.0.1:50051';

export interface Snippet {
  /** `python-write`. */
  readonly name: string;
  /** `python`: the name up to its first hyphen. */
  readonly group: string;
  /** The language after the backticks of the fence. */
  readonly fence: string;
  /** 1-based line of the first line of code, for messages. */
  readonly line: number;
  readonly code: string;
}

/** All snippets of a document. Throws if a marker is not followed by a fenced block, or a name is used twice. */
export function snippetsOf(markdown: string, document = 'the document'): Snippet[] {
  const lines = markdown.split('\n');
  const snippets: Snippet[] = [];
  for (const [i, line] of lines.entries()) {
    const name = /^<!-- snippet: (\S+) -->$/u.exec(line)?.[1];
    if (name === undefined) continue;
    const fence = /^```(\w+)/u.exec(lines[i + 1] ?? '')?.[1];
    const end = lines.indexOf('```', i + 2);
    if (fence === undefined || end < 0)
      throw new Error(`${document}:${i + 1}: no fenced block follows snippet ${name}`);
    if (snippets.some((each) => each.name === name))
      throw new Error(`${document}:${i + 1}: snippet ${name} occurs twice`);
    const code = lines.slice(i + 2, end).join('\n');
    snippets.push({ name, group: name.split('-')[0] ?? name, fence, line: i + 3, code: `${code}\n` });
  }
  return snippets;
}

/** The snippets of README.md, or of another file of this repository. */
export function readSnippets(path = 'README.md'): Snippet[] {
  return snippetsOf(readFileSync(new URL(`../../${path}`, import.meta.url), 'utf8'), path);
}

/**
 * The blocks of one group as one program; of a group in several languages those with one fence. Throws if there is
 * none.
 */
export function programOf(snippets: readonly Snippet[], group: string, fence?: string): string {
  const chosen = snippets.filter((each) => each.group === group && (fence === undefined || each.fence === fence));
  if (chosen.length === 0)
    throw new Error(`no snippet of ${group}, only ${snippets.map((each) => each.name).join(', ')}`);
  if (new Set(chosen.map((each) => each.fence)).size > 1) throw new Error(`${group} has several languages: name one`);
  return chosen.map((each) => each.code).join('\n');
}

/** The same code with another server address (`127.0.0.1:41234`). Throws if it does not contain ADDRESS. */
export function pointedAt(code: string, address: string): string {
  if (!code.includes(ADDRESS)) throw new Error(`a snippet never mentions ${ADDRESS}:\n${code}`);
  return code.replaceAll(ADDRESS, address);
}
