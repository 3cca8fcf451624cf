import { ConnectError } from '@connectrpc/connect';
import { type ErrorInfo, ErrorInfoSchema, RetryInfoSchema } from '../../gen/es/google/rpc/error_details_pb.js';

/** The domain of every ErrorInfo that is Anabranch's. */
export const ERROR_DOMAIN = 'anabranch.v1';

/** Why the server refused: a name of ErrorReason without its prefix (`STEP_CONFLICT`); undefined if the error is not the server's. */
export function reasonOf(error: unknown): string | undefined {
  return errorInfo(error)?.reason;
}

/** What the server told beside the reason, such as `next_step_number` or `writer_epoch`; empty if nothing. */
export function errorMetadata(error: unknown): Readonly<Record<string, string>> {
  return errorInfo(error)?.metadata ?? {};
}

/** How long the server asks to wait before the next try, in milliseconds; undefined if it does not say. */
export function retryDelayMs(error: unknown): number | undefined {
  if (!(error instanceof ConnectError)) return undefined;
  const delay = error.findDetails(RetryInfoSchema)[0]?.retryDelay;
  return delay === undefined ? undefined : Number(delay.seconds) * 1000 + delay.nanos / 1e6;
}

function errorInfo(error: unknown): ErrorInfo | undefined {
  if (!(error instanceof ConnectError)) return undefined;
  return error.findDetails(ErrorInfoSchema).find((info) => info.domain === ERROR_DOMAIN);
}
