import { create, toBinary } from '@bufbuild/protobuf';
import { Client, credentials } from '@grpc/grpc-js';
import { PutStateRequestSchema } from '../../gen/es/anabranch/v1/state_service_pb.js';
import { NONCE_MARK, stateBody, writeNonce } from '../payload.ts';
import { program } from './program.ts';

/** Puts different states, a number of them concurrently. */
export interface StateSettings {
  readonly address: string;
  readonly streams: number;
  readonly bytes: number;
  readonly warmupSeconds: number;
  readonly seconds: number;
}

export interface StateFigures {
  readonly statesPerSecond: number;
}

const METHOD = '/anabranch.v1.StateService/PutState';
const same = (bytes: Buffer) => bytes;

await program(async (settings: StateSettings): Promise<StateFigures> => {
  const client = new Client(settings.address, credentials.createInsecure());
  const request = create(PutStateRequestSchema, { chunk: stateBody(settings.bytes) });
  const template = Buffer.from(toBinary(PutStateRequestSchema, request));
  const nonceAt = template.indexOf(NONCE_MARK);
  let made = 0;
  const work = async (seconds: number): Promise<number> => {
    const begun = performance.now();
    const before = made;
    const lane = async (stream: number) => {
      while (performance.now() - begun < seconds * 1000) {
        made += 1;
        const frame = Buffer.from(template);
        writeNonce(frame, nonceAt, stream, made);
        await put(client, frame);
      }
    };
    await Promise.all(Array.from({ length: settings.streams }, (_, i) => lane(i)));
    return (made - before) / ((performance.now() - begun) / 1000);
  };
  await work(settings.warmupSeconds);
  return { statesPerSecond: await work(settings.seconds) };
});

function put(client: Client, frame: Buffer): Promise<void> {
  return new Promise((resolve, reject) => {
    const call = client.makeClientStreamRequest(METHOD, same, same, (error) =>
      error === null ? resolve() : reject(error),
    );
    call.write(frame);
    call.end();
  });
}
