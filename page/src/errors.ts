import { Code, ConnectError } from '@connectrpc/connect';

/** Returns true if the same call can succeed later: the server or the connection was lost, or the server is busy. */
export function isTransient(error: unknown): boolean {
  if (!(error instanceof ConnectError)) return error instanceof TypeError;
  const lost = [Code.Unavailable, Code.Aborted, Code.Canceled, Code.Unknown, Code.Internal, Code.DeadlineExceeded];
  return lost.includes(error.code) || error.code === Code.ResourceExhausted;
}

/** Returns what a person should read about an error. */
export function messageOf(error: unknown): string {
  if (error instanceof ConnectError) return error.rawMessage;
  return error instanceof Error ? error.message : String(error);
}
