import { randomUUID } from 'node:crypto';
import { zstdDecompressSync } from 'node:zlib';
import type { DescMethod, Message } from '@bufbuild/protobuf';
import { toJson, toJsonString } from '@bufbuild/protobuf';
import { type ConnectError, createClient, type Transport } from '@connectrpc/connect';
import { createConnectTransport, createGrpcTransport } from '@connectrpc/connect-node';
import { expect } from 'vitest';
import { AdminService } from '../../gen/es/anabranch/v1/admin_service_pb.js';
import { BadRequestSchema, ErrorInfoSchema } from '../../gen/es/google/rpc/error_details_pb.js';
import { compareText } from '../../src/domain/text_order.ts';
import { roleOf } from '../../src/rpc/gate.ts';
import type { RunningServer } from '../../src/server.ts';
import { dumpNamespace, type OutsideSql } from '../store/sql.ts';
import { sqliteTextsOf, textsOf } from '../store/statement_count.ts';
import { sha256 } from '../support/steps.ts';
import { withHeaders } from './headers.ts';
import { call, clientOf, framesOf, isRead, METHODS, newSceneOf, reasonOf, refusalOf } from './rpcs/drive.ts';
import { differences, withTexts } from './rpcs/spots.ts';
import { collect, putState } from './story.ts';

/** Methods of one namespace. Those of the installation need the role ADMIN: test/wire/access.test.ts. */
export const TENANT_METHODS = METHODS.filter((method) => roleOf(method) !== 'ADMIN');

const UUID = /[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}/g;
/** In the JSON of a message. */
const TIME = /\d{4}-\d\d-\d\dT[\d:.]+Z/g;
const DIGEST = /\b[0-9a-f]{64}\b/g;

/** Work in the background would send statements beside those of a call. */
export const QUIET = {
  keyCheckMs: 3_600_000,
  keyTrustMs: 7_200_000,
  jobLeaseMs: 0,
  maintenanceMs: 0,
  mergeIdleMs: 0,
  freeSpaceMs: 0,
  staleSweepMs: 0,
  leaseSweepMs: 0,
  retentionMs: 0,
};

const PATHS = [
  ['plain gRPC', createGrpcTransport],
  [
    'Connect',
    (options: Parameters<typeof createGrpcTransport>[0]) =>
      createConnectTransport({ ...options, httpVersion: '2', useBinaryFormat: true }),
  ],
] as const;

function isDigest(text: string): boolean {
  return text.length === 64 && text.match(DIGEST) !== null;
}

function idsIn(text: string): string[] {
  return [...text.matchAll(UUID), ...text.matchAll(DIGEST)].map(([id]) => id);
}

/** A text that names nothing, of the same kind. */
function fresh(text: string): string {
  return text.replace(UUID, () => randomUUID()).replace(DIGEST, () => sha256(randomUUID()));
}

/**
 * The frames with another text, and with fresh ids instead of those that are not in use: they name what the call makes,
 * and no call must repeat one.
 */
function changed(
  { input }: DescMethod,
  frames: readonly Message[],
  [ours, other]: readonly [string, string],
  isUsed: (id: string) => boolean,
): Message[] {
  const made = new Map<string, string>();
  return withTexts(input, frames, (text) => {
    if (text === ours) return other;
    const ids = text.match(UUID);
    if (ids === null || ids.some(isUsed)) return text;
    if (!made.has(text)) made.set(text, fresh(text));
    return made.get(text)!;
  });
}

/** Fields that hold ids, digests and tokens. */
export const NAMES = /(_id|_ids|digests?|_token|_ids_state)$/;

/** Ids that programs choose for themselves: both tenants use the same. */
export const CHOSEN = /\.(call_id|worker_id|writer_id|external_id|task_id)$/;

interface Outcome {
  readonly code: number | undefined;
  readonly reason: string | undefined;
  /** Of the error and its details. */
  readonly text: string;
  readonly answers: string;
  readonly statements: readonly string[];
}

/** Compares what tenants of a server are told with what they would be told if no other tenant were there. */
export class Tenancy {
  readonly #server: RunningServer;
  readonly #sql: OutsideSql;
  readonly #secret: string;
  /** Fields that have named something of the other tenant alone, and those with one text in the requests of both. */
  readonly tried = new Set<string>();
  readonly common = new Set<string>();

  /** The secret of a key for all namespaces, with the role WRITE. */
  constructor(server: RunningServer, sql: OutsideSql, secret: string) {
    this.#server = server;
    this.#sql = sql;
    this.#secret = secret;
  }

  /** Fails if the method tells or changes anything of another tenant. */
  async checkMethod(method: DescMethod): Promise<void> {
    const requestsOf = async (transport: Transport) => framesOf(method, await newSceneOf(method, clientOf(transport)));
    const called = method.name.toLowerCase();
    const owner = this.#transport(`owner-${called}`);
    const foreignState = await putState(clientOf(owner), Buffer.from(randomUUID()));
    const requests = await requestsOf(owner);
    const before = await dumpNamespace(this.#sql, `owner-${called}`);
    const foreignIds = (await this.#ids(owner)).add(foreignState);
    // The owner warms the caches.
    if (isRead(method)) for (const frames of requests) await this.#outcome(owner, method, frames);
    for (const [i, [path, make]] of PATHS.entries()) {
      const stranger = this.#transport(`stranger-${i}-${called}`, make);
      const ours = await requestsOf(stranger);
      const own = await this.#ids(stranger);
      const told = (frames: readonly Message[]) => this.#outcome(stranger, method, frames);
      const leaks = ({ text, answers }: Outcome, sent: string) =>
        [...foreignIds].filter(
          (id) => !own.has(id) && !sent.includes(id) && (text.includes(id) || answers.includes(id)),
        );
      for (const [r, frames] of ours.entries()) {
        const digests = new Set<string>();
        withTexts(method.input, frames, (text, field) => {
          this.common.add(field);
          if (isDigest(text)) digests.add(text);
          return text;
        });
        // Both tenants have some states: the owner names one that only it has.
        const theirs = withTexts(method.input, requests[r]!, (text) => (digests.has(text) ? foreignState : text));
        for (const { fields, ours: text, theirs: foreign } of differences(method.input, frames, theirs)) {
          for (const field of fields) this.tried.add(field);
          const never = fresh(foreign);
          const got = await told(changed(method, frames, [text, foreign], (id) => own.has(id)));
          const expected = await told(changed(method, frames, [text, never], (id) => own.has(id)));
          expect(refusal(got, foreign), `${path}, ${fields[0]}: ${foreign}`).toEqual(refusal(expected, never));
          expect(leaks(got, foreign), `${path}, ${fields[0]}`).toEqual([]);
        }
        const sent = theirs.map((frame) => toJsonString(method.input, frame)).join('\n');
        expect(leaks(await told(theirs), sent), path).toEqual([]);
      }
    }
    expect(await dumpNamespace(this.#sql, `owner-${called}`)).toBe(before);
  }

  /** Fails if another tenant changes what the method tells. */
  async checkCounts(method: DescMethod): Promise<void> {
    const called = `reads-${method.name.toLowerCase()}`;
    const mine = this.#transport(called);
    const requests = await framesOf(method, await newSceneOf(method, clientOf(mine)));
    const answers = async () => {
      const outcomes: string[] = [];
      for (const frames of requests)
        outcomes.push(
          (await this.#outcome(mine, method, frames)).answers.replaceAll(TIME, '<time>').split('\n').sort().join('\n'),
        );
      return outcomes;
    };
    const alone = await answers();
    await newSceneOf(method, clientOf(this.#transport(`beside-${called}`)));
    expect(await answers()).toEqual(alone);
  }

  /** Calls in one namespace. Those of a method have two for themselves. */
  #transport(namespace: string, make: (typeof PATHS)[number][1] = createGrpcTransport): Transport {
    const headers = { authorization: `Bearer ${this.#secret}`, 'anabranch-namespace': namespace };
    return make({ baseUrl: this.#server.url, interceptors: [withHeaders(headers)] });
  }

  async #outcome(transport: Transport, method: DescMethod, frames: readonly Message[]): Promise<Outcome> {
    await expect.poll(() => this.#server.counts().handlers, { interval: 1 }).toBe(0);
    let answers: Message[] = [];
    let error: ConnectError | undefined;
    const work = async () => {
      error = await refusalOf(
        call(transport, method, frames).then((all) => {
          answers = all;
        }),
      );
    };
    // On SQLite, the disk decides which thread reads by key, so their order is not told.
    const statements =
      this.#sql.engine === 'postgres' ? await textsOf(work) : (await sqliteTextsOf(work)).sort(compareText);
    return {
      code: error?.code,
      reason: reasonOf(error),
      text: textOf(error),
      answers: answers.map((answer) => sorted(toJson(method.output, answer))).join('\n'),
      // What a call stores depends on what is stored. The subjects of a watch are read side by side, and so is some
      // data of one call, by the same statement.
      statements: error === undefined || method.name === 'Watch' ? [] : [...new Set(statements)],
    };
  }

  /** Ids and digests in all that a tenant can export. */
  async #ids(transport: Transport): Promise<Set<string>> {
    const parts = await collect(createClient(AdminService, transport).exportArchive({}));
    return new Set(idsIn(zstdDecompressSync(Buffer.concat(parts.map(({ chunk }) => chunk))).toString('latin1')));
  }
}

/** The entries of a map come in any order. */
function sorted(json: unknown): string {
  return JSON.stringify(json, (_, value: unknown) =>
    value !== null && typeof value === 'object' && !Array.isArray(value)
      ? Object.fromEntries(Object.entries(value).sort(([a], [b]) => compareText(a, b)))
      : value,
  );
}

/** All that does not depend on which text a request had. */
function refusal({ answers: _, ...told }: Outcome, sent: string): object {
  return { ...told, text: told.text.replaceAll(sent, '<it>').replaceAll(UUID, '<id>') };
}

function textOf(error: ConnectError | undefined): string {
  if (error === undefined) return '';
  const details = [
    ...error.findDetails(ErrorInfoSchema).map((detail) => toJsonString(ErrorInfoSchema, detail)),
    ...error.findDetails(BadRequestSchema).map((detail) => toJsonString(BadRequestSchema, detail)),
  ];
  return [error.rawMessage, ...details].join('\n');
}
