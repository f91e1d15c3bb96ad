"""Values handed from stage to stage without copying them, each edge by the way the plan says.

`types` says what travels; `frames` takes any value apart into a few bytes and its buffers; `layout` and
`arena` keep buffers in memory that other processes map; `leases` and `identity` say who still reads what;
`transports` puts it all behind one small protocol.
"""

from __future__ import annotations

from pipeline.lookup import Table

TRANSPORTS: Table = {
    "reference": "pipeline.buffers.transports:ReferenceTransport",
    "arena": "pipeline.buffers.transports:ArenaTransport",
    "file": "pipeline.buffers.transports:FileTransport",
    "bytes": "pipeline.buffers.transports:BytesTransport",
    "cuda": "pipeline.buffers.cuda:CudaTransport",
    "peer": "pipeline.buffers.cuda:PeerTransport",
    "staged": "pipeline.buffers.cuda:StagedTransport",
    "cuda-ipc": "pipeline.buffers.cuda_ipc:CudaIpcTransport",
}
