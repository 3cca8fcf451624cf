import { Code, ConnectError } from '@connectrpc/connect';
import type { WriterOptions } from './contract.ts';

type WithDefaults = 'takeOver' | 'maxUnackedSteps' | 'maxUnackedBytes' | 'giveUpAfterMs' | 'silenceMs';

/** The options that have defaults, with their defaults applied. */
export type Settings = Required<Pick<WriterOptions, WithDefaults>>;

/** Applies the defaults. Throws INVALID_ARGUMENT if an option is out of bounds. */
export function settingsOf(options: WriterOptions): Settings {
  return {
    takeOver: options.takeOver ?? true,
    maxUnackedSteps: positive('maxUnackedSteps', options.maxUnackedSteps ?? 10_000),
    maxUnackedBytes: positive('maxUnackedBytes', options.maxUnackedBytes ?? 16 * 1024 * 1024),
    giveUpAfterMs: positive('giveUpAfterMs', options.giveUpAfterMs ?? 5 * 60_000),
    silenceMs: positive('silenceMs', options.silenceMs ?? 45_000),
  };
}

function positive(option: string, value: number): number {
  if (value > 0) return value;
  throw new ConnectError(`${option} is ${value}: expected a number above 0`, Code.InvalidArgument);
}
