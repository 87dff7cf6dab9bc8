"""A small Kubernetes cluster on loopback: the real kubectl talks to it, and pods are processes of this machine.

What a test gets, from ``tests.servers.kube_fixture`` (``from tests.servers.kube_fixture import kube_cluster``, one
for the session) or ``with KubeCluster(folder) as cluster`` (its own, with its own nodes and scale of time)::

    cluster.kubeconfig                a file (0600): CA, bearer token, context "stand-in", namespace "default"
    cluster.environ                   {"KUBECONFIG": ..., "PATH": ...}: for programs that call kubectl
    cluster.kubectl("get", "pods")    runs the real kubectl; .json("get", "jobs") parses its answer
    cluster.image                     an image with sh and Python (BLOBSYNC_TEST_IMAGE on a real cluster)
    cluster.new_namespace()           makes an empty namespace with a name of its own, and returns the name;
                                      new_namespace(enforce="restricted") gives it this level of PodSecurity
    cluster.pod("run-1", 0)           the newest pod of the Job "run-1" with index 0, as an object, or None
    cluster.running("run-1", 0)       waits until that pod runs, and returns its name
    cluster.until(test, what)         waits until a function returns something true, and returns that

and where it is this stand-in (not a real cluster, see below)::

    cluster.kill(pod, namespace, reason="OOMKilled")   SIGKILL to its containers: exit code 137
    cluster.evict(pod, namespace)                      the Eviction API: the pod has DisruptionTarget (real one too)
    cluster.refuse_image(image, "not found")           ErrImagePull, then ImagePullBackOff; cluster.accept_image(image)
    cluster.rotate_logs(65536)                         a new log file after so many bytes (10 MiB else), which alone is
                                                       served; cluster.rotate_logs() makes it 10 MiB again
    cluster.add_node("n9", gpus=4, labels={}, taints=[]); cluster.remove_node("n9")   removed: its pods are lost
    cluster.restart(down=1.0)                          the API server goes and comes back with what it had
    cluster.deny("create", "jobs.batch")               403, also in a review of rights; cluster.allow_all()
    cluster.forget_history()                           a watch from an old version gets 410 Gone
    cluster.requests(clear=True)                       "GET /apis/batch/v1/...?limit=500", in order

``BLOBSYNC_TEST_KUBECONFIG`` swaps it for a real cluster: the fixture then gives a ``RealCluster`` with the first list
alone, and a test that needs the second says ``stand_in(cluster)``, which skips it there.

A namespace with the label ``pod-security.kubernetes.io/enforce: restricted`` (or ``baseline``) refuses pods that are
not what it asks for, so that a Job gets the event FailedCreate, and answers a Job with the header ``Warning:``.

How a pod runs: each container has its own mount, PID, IPC and host name namespaces, so that its program is process 1
(which hears SIGTERM only if it has a handler), and runs as ``runAsUser``; of the rest of a security context, nothing is
carried out. Its files are this machine's with its own changes apart, so every
image is "this machine, with the Python that runs the tests first on PATH"; volumes and Secrets stand where the
manifest says. Each pod has an address in 127.0.0.0/8, and ``/etc/hosts`` answers what the cluster's DNS would:
``JOB-INDEX.SERVICE``. The network is this machine's: a program that listens on 0.0.0.0 takes its port on all pods.

Time: ``scale`` (1.0 unless a test asks) shortens what the real one waits for: back-off, TTL, deadlines, lost nodes;
never the grace period of a pod. It needs Linux, root (or a container with the right to mount) and util-linux.

Not carried out: port-forward and attach (an error says so), volumes of CSI drivers (the pod waits, with the event of
a missing driver), bodies in protobuf (what ``kubectl create namespace`` and the like send: use ``create -f``),
probes, priorities, affinity, and who owns which field (server-side apply is a plain merge).
"""
