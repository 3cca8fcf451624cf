/** The commands of documents, as a reader types them. */

const PROGRAMS = /^(?:anabranch|docker|helm|kubectl|npx|pip|npm) /u;

/** Commands of blocks of the shell, and texts in code style that begin with a program. Without comments. */
export function commandsOf(markdown: string): string[] {
  const blocks = [...markdown.matchAll(/^```sh\n(.*?)^```$/gmsu)].flatMap(([, text = '']) => text.split('\n'));
  const spans = [...markdown.replace(/^```.*?^```$/gmsu, '').matchAll(/`([^`]+)`/gu)];
  const inline = spans.map(([, text = '']) => text.replace(/\s+/gu, ' ')).filter((text) => PROGRAMS.test(text));
  const lines = [...blocks, ...inline].map((line) => line.replace(/(^|\s)#.*$/u, '').trim());
  return lines.flatMap((line) => line.split(/ && | \| /u)).filter((command) => command !== '');
}

/** Commands at the head of a manifest: its first indented comments. A backslash continues one on the next line. */
export function commandsOfHead(manifest: string): string[] {
  const [block = ''] = /(?:^# {3}.*\n)+/mu.exec(manifest) ?? [];
  const lines = block.replace(/\\\n# +/gu, '').split('\n');
  return lines.map((line) => line.replace(/^# {3}/u, '')).filter((command) => PROGRAMS.test(command));
}
