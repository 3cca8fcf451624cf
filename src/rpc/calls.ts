import type { ConnectError } from '@connectrpc/connect';
import type { Meter } from '../stream/settings.ts';
import { codeName } from './call_report.ts';
import { errorInfoOf } from './errors.ts';

/** Counts the calls that are served, and reports each one that has ended. */
export class Calls {
  /** 0 once all clients have disconnected. */
  running = 0;
  readonly #meter: Meter;

  constructor(meter: Meter) {
    this.#meter = meter;
  }

  /** Returns what must be called once when the call ends, with its error. */
  begin(method: string): (error?: ConnectError) => void {
    const begun = performance.now();
    this.running += 1;
    return (error) => {
      this.running -= 1;
      const code = error === undefined ? 'OK' : codeName(error.code);
      this.#meter.called(method, code, (performance.now() - begun) / 1000);
      if (error !== undefined) this.#meter.failed(errorInfoOf(error)?.reason ?? '');
    };
  }
}
