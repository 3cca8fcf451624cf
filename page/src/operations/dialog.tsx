import { useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks';
import type { BranchTrajectoryResponse } from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { addressOf } from '../address.ts';
import { useLoaded, usePage } from '../context.ts';
import { messageOf } from '../errors.ts';
import { type Code, codeOf, continuationOf } from './code.ts';
import { CodeView } from './code_view.tsx';
import { FieldView } from './field_view.tsx';
import { type Operation, perform, type Values } from './operation.ts';

interface OperationDialogProps {
  readonly operation: Operation;
  readonly onDone: () => void;
  readonly onClose: () => void;
}

interface Branch {
  readonly id: string;
  readonly code: Code;
}

/**
 * Asks once, sends the call, and shows the message of the server if it refuses. The same call can be copied as code.
 */
export function OperationDialog({ operation, onDone, onClose }: OperationDialogProps) {
  const { api } = usePage();
  const dialog = useRef<HTMLDialogElement>(null);
  const loaded = useLoaded('', async (signal) => (await operation.load?.(api, signal)) ?? {});
  const [entered, setEntered] = useState<Values>({});
  const [refusal, setRefusal] = useState('');
  const [busy, setBusy] = useState(false);
  const [branch, setBranch] = useState<Branch>();
  useLayoutEffect(() => dialog.current?.showModal(), []);
  const values = { ...loaded.value, ...entered };
  const call = useMemo(() => attempted(() => operation.call(values)), [loaded.value, entered]);
  const send = async (event: Event) => {
    event.preventDefault();
    if ('error' in call) return setRefusal(call.error);
    setBusy(true);
    try {
      const response = await perform(api, call.value);
      onDone();
      if (operation.branches !== true) return dialog.current?.close();
      const { trajectory } = response as BranchTrajectoryResponse;
      if (trajectory === undefined) throw new Error('the response of the server has no trajectory');
      const { id, nextStepNumber } = trajectory;
      setBranch({ id, code: continuationOf(id, nextStepNumber, location) });
    } catch (error) {
      setRefusal(messageOf(error));
    } finally {
      setBusy(false);
    }
  };
  return (
    <dialog ref={dialog} class="operation" aria-labelledby="operation" onClose={onClose}>
      {branch === undefined ? (
        <form onSubmit={send}>
          <h2 id="operation">{operation.question}</h2>
          {operation.fields.map((field) => (
            <FieldView
              key={field.name}
              field={field}
              value={values[field.name] ?? ''}
              onChange={(value) => setEntered((last) => ({ ...last, [field.name]: value }))}
            />
          ))}
          <p role="alert" class={refusal || loaded.error ? 'problem' : undefined}>
            {refusal || loaded.error}
          </p>
          <div class="answers">
            <button type="submit" class="primary" disabled={busy || loaded.value === undefined}>
              {operation.title}
            </button>
            <button type="button" onClick={() => dialog.current?.close()}>
              Close
            </button>
          </div>
          <details>
            <summary>Copy as code</summary>
            {'error' in call ? <p class="dim">{call.error}</p> : <CodeView code={codeOf(call.value, location)} />}
          </details>
        </form>
      ) : (
        <>
          <h2 id="operation">The branch is created</h2>
          <p>
            <a href={addressOf(`/trees/${branch.id}`, { at: branch.id })} onClick={() => dialog.current?.close()}>
              Show it
            </a>
            , or continue it with this code:
          </p>
          <CodeView code={branch.code} />
          <div class="answers">
            <button type="button" onClick={() => dialog.current?.close()}>
              Close
            </button>
          </div>
        </>
      )}
    </dialog>
  );
}

function attempted<T>(make: () => T): { readonly value: T } | { readonly error: string } {
  try {
    return { value: make() };
  } catch (error) {
    return { error: messageOf(error) };
  }
}
