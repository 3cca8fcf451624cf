/** Trees that are too large to be written in a test: the page gets them from the test instead of from the server. */
import { create, type DescMessage, fromBinary, type MessageInitShape, toBinary } from '@bufbuild/protobuf';
import type { Page } from 'playwright-core';
import { WatchRequestSchema, WatchResponseSchema } from '../../gen/es/anabranch/v1/server_service_pb.js';
import { WatchTreeResponseSchema } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';

type Nodes = NonNullable<MessageInitShape<typeof WatchTreeResponseSchema>['nodes']>;

/**
 * Answers WatchTree with nodes. The stream then ends, and the page is told to connect again later. The page has no shared
 * worker, because a test cannot answer what a worker asks.
 */
export async function serveTree(page: Page, nodes: Nodes): Promise<void> {
  const response = toBinary(WatchTreeResponseSchema, create(WatchTreeResponseSchema, { nodes, caughtUp: true }));
  await page.addInitScript('delete globalThis.SharedWorker');
  await page.route('**/anabranch.v1.ServerService/Watch', (route) => {
    const { watches } = fromBinary(
      WatchRequestSchema,
      route.request().postDataBuffer()?.subarray(5) ?? Buffer.alloc(0),
    );
    const watch = watches.findIndex(({ method }) => method.endsWith('/WatchTree'));
    const body = connectStream(WatchResponseSchema, watch < 0 ? [] : [{ watch, response }]);
    return route.fulfill({ body, contentType: 'application/connect+proto' });
  });
}

/** Encodes messages as a server stream of Connect: envelopes, and one at the end. */
function connectStream<D extends DescMessage>(schema: D, messages: readonly MessageInitShape<D>[]): Buffer {
  const parts = messages.map((each) => envelope(0, toBinary(schema, create(schema, each))));
  return Buffer.concat([...parts, envelope(2, Buffer.from('{}'))]);
}

function envelope(flags: number, bytes: Uint8Array): Buffer {
  const head = Buffer.alloc(5);
  head.writeUInt8(flags, 0);
  head.writeUInt32BE(bytes.length, 1);
  return Buffer.concat([head, bytes]);
}

export function uuidOf(number: number): string {
  return `00000000-0000-4000-8000-${number.toString(16).padStart(12, '0')}`;
}
