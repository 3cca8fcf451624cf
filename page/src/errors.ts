import { ConnectError } from '@connectrpc/connect';

/** Returns what a person should read about an error. */
export function messageOf(error: unknown): string {
  if (error instanceof ConnectError) return error.rawMessage;
  return error instanceof Error ? error.message : String(error);
}
