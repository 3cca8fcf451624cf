/**
 * The runnable snippets of a document, as they stand there.
 *
 * A fenced block that a test runs has this comment on the line before its fence (and it renders as nothing):
 *
 *     <!-- snippet: python-write -->
 *     ```python
 *     …
 *     ```
 *
 * The name is the language, a hyphen, and what the block shows; it is unique in its document. The blocks of one language, in the order of the
 * document, are one program: a reader may paste them one below the other, and `programOf` does. They talk to ADDRESS; a test puts the address of
 * its own server there with `pointedAt`. Nothing else may be changed before they run.
 */
import { readFileSync } from 'node:fs';

/** The address that every snippet is written for. */
export const ADDRESS = '127.0.0.1:50051';

export interface Snippet {
  /** `python-write`. */
  readonly name: string;
  /** `python`: what the name begins with. */
  readonly group: string;
  /** What stands after the fence's backticks. */
  readonly fence: string;
  /** 1-based line of the first line of code, for messages. */
  readonly line: number;
  readonly code: string;
}

/** All snippets of a document. Throws where a marker is not followed by a fenced block, or a name is used twice. */
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
      throw new Error(`${document}:${i + 1}: snippet ${name} is there twice`);
    const code = lines.slice(i + 2, end).join('\n');
    snippets.push({ name, group: name.split('-')[0] ?? name, fence, line: i + 3, code: `${code}\n` });
  }
  return snippets;
}

/** The snippets of README.md, or of another file of this repository. */
export function readSnippets(path = 'README.md'): Snippet[] {
  return snippetsOf(readFileSync(new URL(`../../${path}`, import.meta.url), 'utf8'), path);
}

/** The blocks of one language as one program. Throws where there is none. */
export function programOf(snippets: readonly Snippet[], group: string): string {
  const code = snippets.filter((each) => each.group === group).map((each) => each.code);
  if (code.length === 0)
    throw new Error(`no snippet of ${group}: there are ${snippets.map((each) => each.name).join(', ')}`);
  return code.join('\n');
}

/** The same code, talking to another server (`127.0.0.1:41234`). Throws where it does not talk to ADDRESS at all. */
export function pointedAt(code: string, address: string): string {
  if (!code.includes(ADDRESS)) throw new Error(`a snippet never mentions ${ADDRESS}:\n${code}`);
  return code.replaceAll(ADDRESS, address);
}
