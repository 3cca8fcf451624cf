/** Draws the difference of two states: one line per operation of the JSON Patch, or per range of bytes. */
import type { State } from '../../gen/es/anabranch/v1/state_pb.js';
import { type DiffStatesResponse, NoPatchReason } from '../../gen/es/anabranch/v1/state_service_pb.js';
import { cut, type Paint, printable } from './columns.ts';

export interface LineOptions {
  readonly columns: number;
  readonly paint: Paint;
}

/** `names` are the states as the command line names them. */
export function differenceLines(
  names: readonly [string, string],
  answer: DiffStatesResponse,
  options: LineOptions,
): string[] {
  const { paint, columns } = options;
  const headings = [
    headingText('---', names[0], answer.state, answer.mediaType),
    headingText('+++', names[1], answer.otherState, answer.otherMediaType),
  ];
  return [...headings.map((text) => paint.bold(cut(printable(text), columns))), ...changeLines(answer, options)];
}

function headingText(sign: string, name: string, state: State | undefined, mediaType: string): string {
  const size = `${state?.size ?? 0n} bytes`;
  return `${sign} ${name}  (${mediaType === '' ? size : `${mediaType}, ${size}`})`;
}

function changeLines(answer: DiffStatesResponse, options: LineOptions): string[] {
  if (answer.identical) return ['The states are identical.'];
  const { patchJson } = answer;
  if (patchJson === undefined) return [`${WHY[answer.noPatchReason]}. Bytes that differ:`, ...rangeLines(answer)];
  const operations = JSON.parse(patchJson, withExactNumbers) as Operation[];
  if (operations.length === 0) return ['Equal as JSON: only white space, the order of keys or escapes differ.'];
  return operations.map((operation) => operationLine(operation, options));
}

const WHY: Readonly<Record<NoPatchReason, string>> = {
  [NoPatchReason.UNSPECIFIED]: 'No JSON Patch',
  [NoPatchReason.NOT_JSON]: 'Not compared as JSON: a state is not JSON',
  [NoPatchReason.TOO_LARGE]: 'Not compared as JSON: a state has more than 4 MiB',
  [NoPatchReason.DUPLICATE_KEYS]: 'Not compared as JSON: a state has an object with two equal keys',
  [NoPatchReason.TOO_COMPLEX]: 'Not compared as JSON: a state is too deep or too complex',
  [NoPatchReason.PATCH_TOO_LARGE]: 'Not compared as JSON: the JSON Patch would be too large',
  [NoPatchReason.BUSY]: 'Not compared as JSON: the server compares too many states; try again later',
};

/** An operation of a JSON Patch (RFC 6902), as DiffStates returns it. */
interface Operation {
  readonly op: 'add' | 'remove' | 'replace';
  readonly path: string;
  readonly value?: unknown;
}

/** Maximum characters that are drawn of a value. Values can be large, and a line is short. */
const MAX_CHARACTERS = 400;

/** `~ /hp  9`, `+ /at/2  3`, `- /mood` */
function operationLine({ op, path, value }: Operation, { columns, paint }: LineOptions): string {
  const place = path || '(the whole document)';
  const text = op === 'remove' ? place : `${place}  ${JSON.stringify(value).slice(0, MAX_CHARACTERS)}`;
  const shown = cut(printable(text), columns - 2);
  if (op === 'add') return paint.green(`+ ${shown}`);
  return op === 'remove' ? paint.red(`- ${shown}`) : paint.yellow(`~ ${shown}`);
}

function rangeLines({ changedRanges, truncated }: DiffStatesResponse): string[] {
  const width = String(changedRanges.at(-1)?.endOffset ?? '').length;
  const lines = changedRanges.map(({ startOffset: start, endOffset: end }) => {
    return `${String(start).padStart(width)} to ${String(end - 1n).padStart(width)}  (${end - start} bytes)`;
  });
  return truncated ? [...lines, `and more: only the first ${lines.length} ranges are listed.`] : lines;
}

/** ECMAScript function that TypeScript's library does not declare yet. */
const { rawJSON } = JSON as unknown as { rawJSON(text: string): unknown };

/** Numbers keep their text: 1.0 is not drawn as 1. */
function withExactNumbers(_key: string, value: unknown, context?: { readonly source?: string }): unknown {
  return typeof value === 'number' && context?.source !== undefined ? rawJSON(context.source) : value;
}
