/** Trees that are too large to be written in a test: the page gets them from the test instead of from the server. */
import { create, type DescMessage, fromBinary, type MessageInitShape, toBinary } from '@bufbuild/protobuf';
import type { Page, Protocol } from 'puppeteer-core';
import {
  type TreeChangesSchema,
  WatchRequestSchema,
  WatchResponseSchema,
} from '../../gen/es/anabranch/v1/server_service_pb.js';

type Nodes = NonNullable<MessageInitShape<typeof TreeChangesSchema>['nodes']>;

/**
 * Answers the watch of a tree with nodes. The stream then ends, and the page is told to connect again later. The page
 * has no shared worker, because a test cannot answer what a worker asks.
 */
export async function serveTree(page: Page, nodes: Nodes): Promise<void> {
  await page.evaluateOnNewDocument('delete globalThis.SharedWorker');
  // Interception by a `Page` returns what was sent as text, and this is binary.
  const session = await page.createCDPSession();
  session.on('Fetch.requestPaused', ({ requestId, request }) => {
    const { subjects } = fromBinary(WatchRequestSchema, bytesOf(request).subarray(5));
    const trees = Object.keys(subjects).filter((name) => subjects[name]?.tree !== undefined);
    const responses = trees.map((name) => ({ name, tree: { nodes }, caughtUp: true }));
    const body = connectStream(WatchResponseSchema, responses).toString('base64');
    const responseHeaders = [{ name: 'content-type', value: 'application/connect+proto' }];
    // A window that closes ends its requests first.
    session
      .send('Fetch.fulfillRequest', { requestId, responseCode: 200, responseHeaders, body })
      .catch(() => undefined);
  });
  await session.send('Fetch.enable', { patterns: [{ urlPattern: '*/anabranch.v1.ServerService/Watch' }] });
}

function bytesOf({ postDataEntries = [] }: Protocol.Network.Request): Buffer {
  return Buffer.concat(postDataEntries.map(({ bytes = '' }) => Buffer.from(bytes, 'base64')));
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
