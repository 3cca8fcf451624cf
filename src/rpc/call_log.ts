import type { DescMethod } from '@bufbuild/protobuf';
import { Code } from '@connectrpc/connect';
import type { Logger } from '../stream/logger.ts';

/** Every call leaves one line: never what was said in it. `code` is undefined for one that went well. */
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
