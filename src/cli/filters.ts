/** Parses values of flags that filter lists. An invalid value fails with one line that says what was expected. */
import { type Status, StatusSchema } from '../../gen/es/anabranch/v1/status_pb.js';
import { UsageError } from './context.ts';
import { statusName } from './status.ts';

const STATUSES = new Map(
  StatusSchema.values.slice(1).map(({ number }: { readonly number: Status }) => [statusName(number), number]),
);

/** Parses `running,paused`. The flag can be repeated. */
export function parseStatuses(text: string, before: readonly Status[] = []): Status[] {
  const found = text.split(',').map((name) => {
    const status = STATUSES.get(name.trim().toLowerCase());
    if (status !== undefined) return status;
    throw new UsageError(
      `--status is "${text}": expected one or more of ${[...STATUSES.keys()].join(', ')}, separated by commas.`,
    );
  });
  return [...new Set([...before, ...found])];
}

/** Parses `model=pid`. The flag can be repeated. */
export const parseLabel = labelParser('--label');

/** Parses `phase=reach`. The flag can be repeated. */
export const parseStepLabel = labelParser('--step-label');

function labelParser(flag: string) {
  return (text: string, before: Readonly<Record<string, string>> = {}): Record<string, string> => {
    const at = text.indexOf('=');
    if (at > 0) return { ...before, [text.slice(0, at)]: text.slice(at + 1) };
    throw new UsageError(`${flag} is "${text}": expected KEY=VALUE, such as model=pid.`);
  };
}

/** Parses a bound: any number but NaN. */
export function parseBound(flag: string): (text: string) => number {
  return (text) => {
    const value = text.trim() === '' ? Number.NaN : Number(text);
    if (!Number.isNaN(value)) return value;
    throw new UsageError(`${flag} is "${text}": expected a number.`);
  };
}
