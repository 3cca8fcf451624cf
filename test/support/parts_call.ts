import { ANONYMOUS, type Caller } from '../../src/domain/caller.ts';
import { toPartError } from '../../src/rpc/errors.ts';
import type { Call } from '../../src/service/method.ts';
import type { App } from '../../src/stream/app.ts';
import { sharedValidator } from './shared_validator.ts';

/** The context of a method that is called without the wire. */
export function callOf(app: App, caller: Caller): Call {
  return {
    app,
    caller: { ...ANONYMOUS, ...caller },
    signal: app.call.signal,
    check: (schema, message) => sharedValidator().check(schema, message),
    errorOf: (error) => toPartError(error, app.logger),
    tookOver: () => undefined,
  };
}
