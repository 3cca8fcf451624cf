/** Parses values of flags that filter lists. An invalid value fails with one line that says what was expected. */
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { CliError } from './context.ts';
import { statusName } from './status.ts';

const STATUSES = new Map(
  [
    Status.PENDING,
    Status.INITIALIZING,
    Status.RUNNING,
    Status.PAUSED,
    Status.COMPLETED,
    Status.FAILED,
    Status.CANCELLED,
  ].map((status) => [statusName(status), status]),
);

/** Parses `running,paused`. The flag can be repeated. */
export function parseStatuses(text: string, before: readonly Status[] = []): Status[] {
  const found = text.split(',').map((name) => {
    const status = STATUSES.get(name.trim().toLowerCase());
    if (status !== undefined) return status;
    throw new CliError(
      `--status is "${text}": expected one or more of ${[...STATUSES.keys()].join(', ')}, separated by commas.`,
      {
        exitCode: 2,
      },
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
    throw new CliError(`${flag} is "${text}": expected KEY=VALUE, such as model=pid.`, { exitCode: 2 });
  };
}

/** Parses a bound: any number but NaN. */
export function parseBound(flag: string): (text: string) => number {
  return (text) => {
    const value = text.trim() === '' ? Number.NaN : Number(text);
    if (!Number.isNaN(value)) return value;
    throw new CliError(`${flag} is "${text}": expected a number.`, { exitCode: 2 });
  };
}
