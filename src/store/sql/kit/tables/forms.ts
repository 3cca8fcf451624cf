import { SUBJECT_LENGTH } from '../../../../domain/identity.ts';
import { formatInstant, type Instant, parseInstant } from '../../../../domain/instant.ts';
import { requireConfig } from '../../../../domain/json.ts';
import { LIMITS } from '../../../../domain/limits.ts';
import { STAGE_KINDS } from '../../../../domain/run.ts';
import { fitsBytes, isStorableText, jsonFault } from '../../../../domain/text.ts';
import { bindLabels, bindMetrics } from '../values.ts';

/** The values that a column may have, of those that its type allows. Imports and `verify` read them. */
export type Form =
  | { readonly kind: 'integer'; readonly least: bigint; readonly most: bigint; readonly imported?: bigint }
  | { readonly kind: 'real'; readonly least: number; readonly most: number; readonly nan?: true }
  | { readonly kind: 'time'; readonly first: Instant; readonly last: Instant }
  | TextForm;

interface TextForm {
  readonly kind: 'text';
  readonly least: number;
  readonly most: number;
  /** What the text must be, and whether it is. Undefined: any text that can be stored (W11). */
  readonly content?: { readonly expected: string; readonly fits: (text: string) => boolean };
}

/** Largest integer that every reader can represent exactly. */
const LARGEST_EXACT = 2n ** 53n - 1n;
/** Largest value of a field `int64`. */
const LARGEST = 2n ** 63n - 1n;

export function integers(least: bigint | number, most: bigint | number): Form {
  return { kind: 'integer', least: BigInt(least), most: BigInt(most) };
}

/** Set by clients. */
export const ANY_INTEGER = integers(-LARGEST - 1n, LARGEST);
export const NATURAL = integers(0, LARGEST);
/** Counted by the service. Imports accept smaller ones only (`imported`), so that the service can count on. */
export const COUNT: Form = { kind: 'integer', least: 0n, most: LARGEST_EXACT, imported: 10n ** 12n };
export const ATTEMPT: Form = { kind: 'integer', least: 0n, most: 2n ** 31n - 1n, imported: 10n ** 9n };

/** Substeps of a stage. */
export const SUBSTEPS = integers(0, 10n ** 12n);
/** Milliseconds. */
export const DAY_MS = 86_400_000;
/** The longest duration of a message, in milliseconds. */
export const LONGEST_MS = 315_576_000_000_000n;

export function reals(least: number, most: number): Form {
  return { kind: 'real', least, most };
}

/** Any number, also NaN. */
export const ANY_REAL: Form = {
  kind: 'real',
  least: Number.NEGATIVE_INFINITY,
  most: Number.POSITIVE_INFINITY,
  nan: true,
};
/** A sum of seconds, or another amount. */
export const AMOUNT = reals(0, Number.MAX_VALUE);

/**
 * A time of the database's clock, or one that follows from it. Sums of two such times are times too.
 */
export const MOMENT: Form = {
  kind: 'time',
  first: parseInstant('1970-01-01T00:00:00.000000Z'),
  last: parseInstant('2199-12-31T23:59:59.999999Z'),
};

/** Text of `least` to `most` bytes. */
export function upTo(most: number, least = 0): Form {
  return { kind: 'text', least, most };
}

/** Name of a principal. Those of tokens and certificates are the longest. */
export const ACTOR = upTo('sub:'.length + SUBJECT_LENGTH);

function text(most: number, expected: string, fits: (text: string) => boolean): Form {
  return { kind: 'text', least: 0, most, content: { expected, fits } };
}

export function oneOf(values: readonly string[]): Form {
  return text(64, `one of ${values.join(', ')}`, (value) => values.includes(value));
}

export function matching(most: number, pattern: RegExp): Form {
  return text(most, `text that matches ${pattern.source}`, (value) => pattern.test(value));
}

/** JSON text of a client; empty for none. */
export function json(most: number): Form {
  return text(most, 'strict JSON text, or empty', (value) => value === '' || jsonFault(value) === undefined);
}

export function config(most: number): Form {
  return text(most, 'a JSON object of bounded depth, or empty', (value) => {
    return isReadable(() => requireConfig(value, ''));
  });
}

/** The texts that the service writes are read again, and must be what it writes for the result. */
function written<T>(
  most: number,
  expected: string,
  read: (value: unknown) => T | undefined,
  write: (read: T) => string,
) {
  return text(most, expected, (value) => {
    return isReadable(() => {
      const found = read(JSON.parse(value));
      if (found === undefined || write(found) !== value) throw new RangeError(expected);
    });
  });
}

function isReadable(read: () => unknown): boolean {
  try {
    read();
    return true;
  } catch {
    return false;
  }
}

/** JSON text of at most `most` bytes with a value that `fits`, or empty. */
function structure(most: number, expected: string, fits: (value: unknown) => boolean): Form {
  const whole = written(
    most,
    expected,
    (value) => (fits(value) ? { value } : undefined),
    ({ value }) => {
      return JSON.stringify(value);
    },
  ) as TextForm;
  return text(most, `${expected}, or empty`, (value) => value === '' || whole.content!.fits(value));
}

/** JSON text: a list of texts. */
export function list(items: number, itemBytes: number, leastBytes = 1): Form {
  return written(
    items * (6 * itemBytes + 3) + 2,
    `a JSON list of at most ${items} texts of ${leastBytes} to ${itemBytes} bytes`,
    (value) => {
      if (!Array.isArray(value) || value.length > items) return undefined;
      return value.every((item) => isText(item, itemBytes, leastBytes)) ? value : undefined;
    },
    (value) => JSON.stringify(value),
  );
}

/** JSON text: an object of texts. */
export const LABELS = written(
  64 * 6 * (64 + 256 + 8),
  'a JSON object of labels, sorted by key',
  (value) => {
    const entries = entriesOf(value, 64, 64);
    if (entries?.every(([, label]) => isText(label, 256, 0)) !== true) return undefined;
    return new Map(entries as [string, string][]);
  },
  bindLabels,
);

/** JSON text: an object of numbers, or of texts for those that JSON lacks. */
export const METRICS = written(
  LIMITS.metrics * 6 * (LIMITS.metricKeyBytes + 32),
  'a JSON object of numbers, sorted by key',
  (value) => {
    const entries = entriesOf(value, LIMITS.metrics, LIMITS.metricKeyBytes);
    if (entries?.every(([, each]) => isNumber(each)) !== true) return undefined;
    return new Map(entries.map(([key, each]): [string, number] => [key, Number(each)]));
  },
  bindMetrics,
);

/** JSON text: an object of pairs of times. */
export const TIMINGS = structure(LIMITS.timings * 6 * (128 + 80), 'a JSON object of pairs of times', (value) => {
  const entries = entriesOf(value, LIMITS.timings, 128);
  return (
    entries?.every(([, pair]) => isPair(pair) && pair.every((time) => time === null || isTimeText(time, 9))) === true
  );
});

/** JSON text of the pauses of a run, in order; empty for none. */
export const PAUSES = structure(101 * 64, 'a JSON list of pauses in order', (value) => {
  if (!Array.isArray(value) || value.length > 101) return false;
  const times = value.flat() as unknown[];
  return (
    value.every(
      (pause, i) => isPair(pause) || (Array.isArray(pause) && pause.length === 1 && i === value.length - 1),
    ) &&
    times.every((time) => isTimeText(time, 6) && expectedBy(MOMENT, time as string) === undefined) &&
    value.every((pause) => pause.length === 1 || (pause[0] as string) <= (pause[1] as string))
  );
});

/** JSON text of the plan of a run; empty for none. */
export const PLAN = structure(4096, 'a JSON plan', (value) => {
  if (!hasOnly(value, { stagePlans: Array.isArray, concurrency: (n) => isWhole(n, 0, 1_000_000) })) return false;
  const plans = value.stagePlans as readonly unknown[];
  const kinds = plans.map((plan) => (plan as { readonly kind?: unknown } | null)?.kind);
  return new Set(kinds).size === plans.length && plans.every((plan) => hasOnly(plan, STAGE_PLAN));
});

const STAGE_PLAN: Readonly<Record<string, (value: unknown) => boolean>> = {
  kind: (kind) => (STAGE_KINDS as readonly unknown[]).includes(kind),
  stages: (n) => isWhole(n, 0, 10_000_000),
  groupsPerStage: (n) => isWhole(n, 0, 1_000_000),
  groupSize: (n) => isWhole(n, 0, 1_000_000),
  maxTurns: (n) => isWhole(n, 0, 10_000_000),
  substeps: (n) => isWhole(n, 0, 10_000_000),
};

/** JSON text of a result without its summary; empty for none. */
export const RESULT = structure(8 * LIMITS.resultErrorBytes, 'a JSON result', (value) => {
  const isFlag = (flag: unknown) => typeof flag === 'boolean';
  const areErrors = (errors: unknown) => {
    return Array.isArray(errors) && errors.length <= 1000 && errors.every((error) => isText(error, 4096, 0));
  };
  const fields = { reward: isNumber, taskCompleted: isFlag, agentReportedSuccess: isFlag, success: isFlag };
  return hasSome(value, { ...fields, errors: areErrors });
});

/** JSON text of the original values of changed columns; empty for none. */
export function originals(columns: readonly string[]): Form {
  const isValue = (value: unknown) => value === null || (typeof value === 'string' && isStorableText(value));
  const fields = Object.fromEntries(columns.map((column) => [column, isValue]));
  return structure(4 * 1024 * 1024, 'a JSON object of columns', (value) => hasSome(value, fields));
}

type Checks = Readonly<Record<string, (value: unknown) => boolean>>;

function hasOnly(value: unknown, fields: Checks): value is Readonly<Record<string, unknown>> {
  return hasSome(value, fields) && Object.keys(value).length === Object.keys(fields).length;
}

function hasSome(value: unknown, fields: Checks): value is Readonly<Record<string, unknown>> {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return false;
  return Object.entries(value).every(([name, each]) => Object.hasOwn(fields, name) && fields[name]!(each));
}

function entriesOf(value: unknown, most: number, keyBytes: number): [string, unknown][] | undefined {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return undefined;
  const entries = Object.entries(value);
  return entries.length <= most && entries.every(([key]) => isText(key, keyBytes, 1)) ? entries : undefined;
}

function isText(value: unknown, most: number, least: number): boolean {
  return typeof value === 'string' && isStorableText(value) && value.length >= least && fitsBytes(value, most);
}

function isNumber(value: unknown): boolean {
  return typeof value === 'number' || ['NaN', 'Infinity', '-Infinity', '-0'].includes(value as string);
}

function isWhole(value: unknown, least: number, most: number): boolean {
  return Number.isInteger(value) && (value as number) >= least && (value as number) <= most;
}

function isPair(value: unknown): value is readonly unknown[] {
  return Array.isArray(value) && value.length === 2;
}

/** Returns whether the text is what `formatInstant` writes. */
export function isTimeText(value: unknown, digits: 6 | 9): boolean {
  if (typeof value !== 'string' || value.length !== 21 + digits) return false;
  return isReadable(() => {
    if (formatInstant(parseInstant(value), digits) !== value || value < '0001') throw new RangeError(value);
  });
}

/**
 * Returns what the value of a column would have to be. Undefined if it has its form. Integers are bigint, reals number,
 * times text.
 */
export function expectedBy(form: Form, value: bigint | number | string): string | undefined {
  switch (form.kind) {
    case 'integer': {
      const { least, most } = form;
      return (value as bigint) >= least && (value as bigint) <= most ? undefined : `from ${least} to ${most}`;
    }
    case 'real': {
      const { least, most, nan } = form;
      const isIn = Number.isNaN(value) ? nan : (value as number) >= least && (value as number) <= most;
      return isIn ? undefined : `from ${least} to ${most}`;
    }
    case 'time': {
      const [first, last] = [form.first, form.last].map((time) => formatInstant(time, 6));
      const time = parseInstant(value as string);
      return time >= form.first && time <= form.last ? undefined : `from ${first} to ${last}`;
    }
    case 'text':
      return expectedText(form, value as string);
  }
}

function expectedText({ least, most, content }: TextForm, text: string): string | undefined {
  if (!isStorableText(text)) return 'text without U+0000 and without lone surrogates';
  if (!fitsBytes(text, most) || Buffer.byteLength(text) < least) return `text of ${least} to ${most} bytes`;
  return content === undefined || content.fits(text) ? undefined : content.expected;
}
