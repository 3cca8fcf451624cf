/** Texts of `--help` for the width of the terminal. */

/** `  anabranch runs --stale    those whose heartbeat has stopped`: a command, and what it does. */
const EXAMPLE = /^( {2})(\S.*?)(?: {2,}(\S.*))?$/;

/**
 * Returns a text of which no line is wider than `width` columns, unless a single word is: paragraphs are wrapped, and
 * examples are continued on further lines. What each example does is below it if one of them has no room for it.
 */
export function fitHelp(text: string, width: number): string {
  const blocks = text.split(/(\n{2,}|^\n|\n$)/);
  return blocks.map((block) => (widest(block) <= width ? block : fitted(block, width))).join('');
}

function widest(block: string): number {
  return Math.max(...block.split('\n').map((line) => line.length));
}

function fitted(block: string, width: number): string {
  const lines = block.split('\n');
  if (!lines.some((line) => line.startsWith(' '))) return wrapped(lines.join(' ').split(' '), width).join('\n');
  return lines.flatMap((line) => (line.startsWith(' ') ? exampleLines(line, width) : [line])).join('\n');
}

function exampleLines(line: string, width: number): string[] {
  const [, indent = '', command = '', meaning] = EXAMPLE.exec(line) ?? [];
  // An option stays with its value.
  const parts = wrapped(command.split(/ (?=[-|&>])/), width - indent.length - CONTINUED.length, indent.length + 2);
  const last = parts.length - 1;
  return [
    ...parts.map((part, at) => indent + (at === 0 ? '' : indent) + part + (at === last ? '' : CONTINUED)),
    ...(meaning === undefined ? [] : wrapped(meaning.split(' '), width - MEANING.length).map((part) => MEANING + part)),
  ];
}

/** A shell continues the line. */
const CONTINUED = ' \\';
const MEANING = ' '.repeat(6);

/** Joins words to lines. `later` is how much narrower all lines but the first are. */
function wrapped(words: readonly string[], width: number, later = 0): string[] {
  const lines: string[] = [];
  let line = '';
  for (const word of words) {
    const room = lines.length === 0 ? width : width - later;
    if (line !== '' && line.length + 1 + word.length > room) {
      lines.push(line);
      line = word;
    } else line = line === '' ? word : `${line} ${word}`;
  }
  return [...lines, line];
}
