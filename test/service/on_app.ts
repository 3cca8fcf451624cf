import { randomUUID } from 'node:crypto';
import { create } from '@bufbuild/protobuf';
import { v7 } from 'uuid';
import { afterAll, beforeAll, expect } from 'vitest';
import { HasStatesRequestSchema } from '../../gen/es/anabranch/v1/state_service_pb.js';
import type { Step } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import type { OpenRequest, SealRequest } from '../../src/domain/append.ts';
import type { Caller } from '../../src/domain/caller.ts';
import type { StoredStep } from '../../src/domain/step.ts';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import { stateMethods } from '../../src/service/state/state.ts';
import type { StateInfo } from '../../src/store/contract/state.ts';
import type { Store } from '../../src/store/contract/store.ts';
import { type App, createApp } from '../../src/stream/app.ts';
import type { AppendEvent, AppendFrame, AppendSession } from '../../src/stream/append/session.ts';
import { openAppendSession } from '../../src/stream/append/session.ts';
import type { AppSettings } from '../../src/stream/settings.ts';
import type { ReadStepsArgs, StepsRead } from '../../src/stream/steps/read.ts';
import { readSteps } from '../../src/stream/steps/read.ts';
import { describeStore, logger, type OnStore } from '../store/on_store.ts';
import { type GivenTrajectory, Scene } from '../store/scene.ts';
import { decodedSteps } from '../support/encoded_steps.ts';
import { type GivenState, type GivenStep, newSteps } from '../support/given_steps.ts';
import { callOf } from '../support/parts_call.ts';
import { makeStep, textAction } from '../support/steps.ts';
import { servicesOf } from './services.ts';

/** Short poll intervals, so that tests need not wait; maintenance only where a test requests it. */
const TEST_SETTINGS: Partial<AppSettings> = {
  pollMs: 50,
  progressMs: 200,
  claimRestMs: 10,
  jobLeaseMs: 0,
  maintenanceMs: 0,
  staleSweepMs: 0,
  leaseSweepMs: 0,
  retentionMs: 0,
  mergeIdleMs: 0,
};

export interface OnApp extends Pick<OnStore, 'engine' | 'database' | 'store'> {
  /** A namespace, new unless named, in the app of the file or in the given one. */
  scene(app?: App, namespace?: string): AppScene;
  /** Another app on the same store or on a wrapped one; the caller closes it. */
  app(settings?: Partial<AppSettings>, store?: Store): App;
}

export interface DecodedRead extends Omit<StepsRead, 'part' | 'firstStepNumber'> {
  readonly trajectoryId: string;
  readonly steps: readonly StoredStep[];
}

export function createTestApp(
  { engine, store: own }: Pick<OnStore, 'engine' | 'store'>,
  settings: Partial<AppSettings> = {},
  store: Store = own,
): App {
  const commitsAtOnce = engine === 'sqlite' ? 1 : 2;
  const ids = { uuid: v7, uid: randomUUID };
  return createApp({ store, ids, logger, settings: { ...TEST_SETTINGS, commitsAtOnce, ...settings } });
}

/** Runs the same tests on both engines: the use cases with a real store. */
export function describeApp(subject: string, define: (on: OnApp) => void): void {
  describeStore(subject, (on) => {
    let app: App;
    const newApp = (settings: Partial<AppSettings> = {}, store: Store = on.store) => createTestApp(on, settings, store);
    beforeAll(() => {
      app = newApp();
    });
    // Runs before the store is closed.
    afterAll(() => app?.close());
    define({
      engine: on.engine,
      get database() {
        return on.database;
      },
      get store() {
        return on.store;
      },
      scene: (other, namespace) => new AppScene(other ?? app, namespace),
      app: newApp,
    });
  });
}

/** One namespace of an app, with short forms of calls that tests make often. */
export class AppScene {
  readonly app: App;
  readonly #inStore: Scene;

  constructor(app: App, namespace?: string) {
    this.app = app;
    this.#inStore = new Scene(app.store, namespace);
  }

  get caller(): Caller {
    return this.#inStore.caller;
  }

  /** Methods of the services, called by the caller of this scene. */
  get rpc() {
    return servicesOf(this.app, this.caller);
  }

  create(fields: GivenTrajectory = {}): Promise<Trajectory> {
    return this.#inStore.create(fields);
  }

  branch(source: { readonly id: string }, at: bigint | string): Promise<Trajectory> {
    return this.#inStore.branch(source, at);
  }

  open(trajectory: { readonly id: string }, fields: Partial<OpenRequest> = {}): Promise<AppendSession> {
    return openAppendSession(this.app, this.caller, {
      trajectoryId: trajectory.id,
      uid: undefined,
      writerId: 'w',
      takeOverEpoch: undefined,
      expectedNextStepNumber: undefined,
      ...fields,
    });
  }

  /** Appends through a stream of its own: one frame for each step, then the end. Returns the answers of the server. */
  async write(
    trajectory: { readonly id: string },
    steps: readonly GivenStep[],
    seal?: SealRequest,
  ): Promise<AppendEvent[]> {
    const { writerEpoch } = await this.now(trajectory);
    const session = await this.open(trajectory, { takeOverEpoch: writerEpoch });
    for (const step of steps) if (!session.push(frame([step]))) await session.room();
    if (seal !== undefined) session.push(frame([], seal));
    session.end();
    return all(session.events());
  }

  /** Creates a trajectory with one step for each word. */
  async createWith(words: readonly string[], fields: { taskId?: string } = {}): Promise<Trajectory> {
    const made = await this.create(fields);
    await this.write(
      made,
      words.map((word, i) => step(BigInt(i), word)),
    );
    return this.now(made);
  }

  /** Asks which states are stored, and renews their time. */
  async statesHere(digests: readonly string[]): Promise<StateInfo[]> {
    const { app, caller } = this;
    const request = create(HasStatesRequestSchema, { digests: [...digests] });
    const { states = [] } = await stateMethods.hasStates(request, callOf(app, caller));
    return states.map(({ digest = '', size }) => ({ digest, size: Number(size) }));
  }

  now({ id }: { readonly id: string }): Promise<Trajectory> {
    return this.#inStore.get(id);
  }

  /** Reads steps, decoded as by clients. */
  async *read(
    trajectory: { readonly id: string },
    fields: Partial<ReadStepsArgs> = {},
  ): AsyncGenerator<DecodedRead, void, undefined> {
    const args = {
      trajectoryId: trajectory.id,
      startStepNumber: 0n,
      endStepNumber: undefined,
      view: 'FULL',
      inlineBytes: 0,
      follow: false,
      signal: new AbortController().signal,
      ...fields,
    } as const;
    for await (const { part, firstStepNumber, ...read } of readSteps(this.app, this.caller, args)) {
      const steps = decodedSteps(part);
      expect(firstStepNumber).toBe(read.nextStepNumber - BigInt(steps.length));
      yield { trajectoryId: part?.owner.id ?? '', steps, ...read };
    }
  }

  async steps(trajectory: { readonly id: string }, fields: Partial<ReadStepsArgs> = {}): Promise<StoredStep[]> {
    const all: StoredStep[] = [];
    for await (const { steps } of this.read(trajectory, fields)) all.push(...steps);
    return all;
  }

  async words(trajectory: { readonly id: string }): Promise<string[]> {
    return (await this.steps(trajectory)).map(wordOf);
  }
}

/** A step that a word distinguishes from others of its number. */
export function step(stepNumber: bigint, word: string, fields: Partial<GivenStep> = {}): GivenStep {
  return { ...makeStep(stepNumber), actions: [textAction(word)], states: [], ...fields };
}

export function state(data: Uint8Array | string | undefined, fields: Partial<GivenState> = {}): GivenState {
  const bytes = typeof data === 'string' ? new TextEncoder().encode(data) : data;
  return { name: '', data: bytes, digest: '', mediaType: '', ...fields };
}

export function frame(steps: readonly GivenStep[], seal?: SealRequest, bytes = 100): AppendFrame {
  return { ...newSteps(steps), tags: [], seal, bytes };
}

export function wordOf({ actions }: Pick<StoredStep, 'actions'>): string {
  const content = actions[0]?.content;
  return content?.kind === 'text' ? content.text : '';
}

/** The word of a step in a response. */
export function shownWord({ step: shown }: { readonly step?: Step | undefined }): string {
  return shown?.actions[0]?.content?.text ?? '';
}

export async function all<Item>(items: AsyncIterable<Item>): Promise<Item[]> {
  const found: Item[] = [];
  for await (const item of items) found.push(item);
  return found;
}
