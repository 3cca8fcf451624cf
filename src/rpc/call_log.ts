import type { DescMethod } from '@bufbuild/protobuf';
import { Code } from '@connectrpc/connect';
import type { Logger } from '../stream/logger.ts';

/** Logs one line per call, without its contents. `code` is undefined if the call succeeded. */
export function logCall(
  logger: Logger,
  { name, parent }: DescMethod,
  protocol: string,
  code: Code | undefined,
  begunAt: number,
): void {
  const ms = Math.round((performance.now() - begunAt) * 100) / 100;
  const line = { rpc: `${parent.typeName}/${name}`, protocol, code: code === undefined ? 'ok' : Code[code], ms };
  logger.debug(line, 'call');
}
