"""The commands of ``taipan``, in the order of its help."""

from typing import Final

from . import check, cluster_try, completion, doctor, hash_password, init, install_service, migrate

COMMANDS: Final = (
    check.add_to,
    cluster_try.add_to,
    migrate.add_to,
    hash_password.add_to,
    doctor.add_to,
    init.add_to,
    install_service.add_to,
    completion.add_to,
)
