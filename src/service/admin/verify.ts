import { create, type MessageInitShape } from '@bufbuild/protobuf';
import {
  StorageCheck,
  type StorageFaultSchema,
  type VerifyDatabaseRequest,
  type VerifyDatabaseResponse,
  VerifyDatabaseResponseSchema,
} from '../../../gen/es/anabranch/v1/admin_service_pb.js';
import type { StorageFault, VerificationProgress } from '../../domain/verification.ts';
import type { Call } from '../method.ts';

/** Faults in one message. */
const MOST_FAULTS = 100;

/** Progress without faults is sent this often at most. */
const PROGRESS_MS = 100;

/** V1. Errors: SERVER_DRAINING. */
export async function* verifyDatabase(
  _request: VerifyDatabaseRequest,
  { app }: Call,
): AsyncGenerator<VerifyDatabaseResponse, void, undefined> {
  let last: VerificationProgress | undefined;
  let sentAt = 0;
  for await (const progress of app.store.verify()) {
    app.drain.throwIfBegun();
    last = { ...progress, faults: [] };
    const { faults } = progress;
    for (let at = 0; at < faults.length; at += MOST_FAULTS) {
      yield response({ ...progress, faults: faults.slice(at, at + MOST_FAULTS) });
    }
    if (performance.now() - sentAt < PROGRESS_MS) continue;
    sentAt = performance.now();
    yield response(last);
  }
  if (last !== undefined) yield response(last);
}

function response({ faults, ...progress }: VerificationProgress): VerifyDatabaseResponse {
  return create(VerifyDatabaseResponseSchema, { ...progress, faults: faults.map(fromFault) });
}

function fromFault({ check, ...fault }: StorageFault): MessageInitShape<typeof StorageFaultSchema> {
  return { ...fault, check: StorageCheck[check] };
}
